"""The fields of a JobSpec: explained, checked, and named by their errors; what a backend cannot do is refused."""

import ast
import itertools
import pickle
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from golden_specs import GOLDEN, IMAGE, spec

from hvdkit import jobs
from hvdkit.errors import InputError
from hvdkit.jobs import monarch, render
from hvdkit.jobs.policy import Elastic, EnvSource, Metrics, Network, RunPolicy
from hvdkit.jobs.resources import Launcher, Resources
from hvdkit.jobs.scheduling import NodeRule, Scheduling, Toleration
from hvdkit.jobs.security import Security
from hvdkit.jobs.spec import BACKENDS, Host, JobSpec
from hvdkit.jobs.storage import nfs_claim
from hvdkit.jobs.volumes import EmptyDir, HostPath, Nfs, Volume

PARTS = (JobSpec, Host, Elastic, EnvSource, Metrics, Network, RunPolicy, Launcher, Resources, NodeRule, Scheduling)
PARTS += (Toleration, Security, EmptyDir, HostPath, Nfs, Volume)
NFS = Nfs(server="10.0.0.5", path="/exports/data")
SOFT = replace(NFS, mount_options=("soft",))
ROOT_BASELINE = Security(level="baseline", user=0, capabilities=("IPC_LOCK",))


def volume(**given) -> dict:
    return {"volumes": (Volume(**({"mount": "/data"} | given)),)}


@pytest.mark.parametrize("part", PARTS)
def test_every_field_has_its_explanation_under_it(part: type) -> None:
    source = Path(sys.modules[part.__module__].__file__).read_text()
    classes = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    body = next(one for one in classes if one.name == part.__name__).body
    explained = {
        declared.target.id
        for declared, after in itertools.pairwise(body)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
    assert {field.name for field in fields(part)} == explained


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"namespace": "Team A"}, "namespace"),
        ({"image": "a b"}, "image"),
        ({"launcher_image": ""}, "launcher_image"),
        ({"pull_policy": "Sometimes"}, "pull_policy"),
        ({"pull_secrets": ("a", "B")}, "pull_secrets[1]"),
        ({"pull_secrets": ("a", "a")}, "pull_secrets[1]"),
        ({"command": ("a", "b\0")}, "command[1]"),
        ({"working_dir": "code"}, "working_dir"),
        ({"env_from": {"A": EnvSource(secret="s")}}, "env_from.A.key"),
        ({"env_from": {"A": EnvSource(secret="s", config_map="c", key="k")}}, "env_from.A.secret"),
        ({"env_from": {"A": EnvSource(field="status.weather")}}, "env_from.A.field"),
        ({"env_from": {"A": EnvSource(field="status.podIP", key="k")}}, "env_from.A.field"),
        ({"env_from": {"A": EnvSource(secret="s", key="k")}, "env": {"A": "1"}}, "env_from.A"),
        ({"env_from": {"A B": EnvSource(secret="s", key="k")}}, "env_from"),
        ({"resources": Resources(cpus="four")}, "resources.cpus"),
        ({"resources": Resources(memory="16GB")}, "resources.memory"),
        ({"resources": Resources(memory="0")}, "resources.memory"),
        ({"resources": Resources(memory="512m")}, "resources.memory: '512m' are thousandths of a byte; write 512Mi"),
        ({"resources": Resources(memory="16")}, "resources.memory: '16' is less than 1Mi"),
        ({"resources": Resources(cpus="4Gi")}, "resources.cpus: '4Gi' has a suffix for bytes"),
        ({"resources": Resources(gpu_resource="gpu")}, "resources.gpu_resource: 'gpu' is not an extended resource"),
        ({"resources": Resources(extended={"nvidia.com/gpu": "1"})}, "resources.extended: nvidia.com/gpu are the GPUs"),
        ({"resources": Resources(gpus=-1)}, "resources.gpus"),
        ({"resources": Resources(extended={"nic": "1"})}, "resources.extended"),
        ({"resources": Resources(extended={"rdma/hca": "0.5"})}, "resources.extended.rdma/hca"),
        ({"launcher": Launcher(resources=Resources(memory="1GB"))}, "launcher.resources.memory"),
        ({"slots": 4, "resources": Resources(gpus=2)}, "slots"),
        ({"shm": "-1"}, "shm"),
        ({"shm": "64"}, "shm: '64' is less than 1Mi"),
        ({"shm": "9Gi", "resources": Resources(memory="8Gi")}, "shm: 9Gi is more than the pod's memory, 8Gi"),
        (volume(), "volumes[0].mount"),
        (volume(pvc="a", secret="b"), "volumes[0].mount"),
        (volume(nfs=Nfs(server="10.0.0.5", path="exports")), "volumes[0].nfs.path"),
        (volume(nfs=Nfs(server="a b", path="/exports")), "volumes[0].nfs.server"),
        (volume(nfs=replace(NFS, mount_options=("hard,ro",))), "volumes[0].nfs.mount_options[0]"),
        (volume(mount="data", pvc="a"), "volumes[0].mount"),
        (volume(mount="/a/../b", pvc="a"), "volumes[0].mount"),
        (volume(mount="/", pvc="a"), "volumes[0].mount"),
        (volume(mount="/tmp/", pvc="a"), "volumes[0].mount"),
        (volume(mount="/etc/mpi", pvc="a"), "volumes[0].mount"),
        (volume(pvc="A"), "volumes[0].pvc"),
        (volume(pvc="a", sub_path="/x"), "volumes[0].sub_path"),
        ({"volumes": (Volume(mount="/a", pvc="a"), Volume(mount="/a/", pvc="b"))}, "volumes[1].mount"),
        (volume(empty_dir=EmptyDir(size="big")), "volumes[0].empty_dir.size"),
        (volume(host_path=HostPath(path="/x")), "volumes[0].host_path"),
        ({"scheduling": Scheduling(node_selector={"a b": "c"})}, "scheduling.node_selector"),
        ({"scheduling": Scheduling(affinity=(NodeRule(key="a"),))}, "scheduling.affinity[0].values"),
        ({"scheduling": Scheduling(affinity=(NodeRule(key="a", operator="Gt", values=("b",)),))}, "scheduling"),
        ({"scheduling": Scheduling(affinity=(NodeRule(key="a", values=("b",), weight=101),))}, "scheduling.affinity"),
        ({"scheduling": Scheduling(tolerations=(Toleration(value="a"),))}, "scheduling.tolerations[0].value"),
        ({"scheduling": Scheduling(tolerations=(Toleration(key="a", seconds=1),))}, "scheduling.tolerations[0]"),
        ({"scheduling": Scheduling(gang="slurm")}, "scheduling.gang"),
        ({"scheduling": Scheduling(gang_timeout=5)}, "scheduling.gang_timeout"),
        ({"scheduling": Scheduling(gang="volcano", scheduler="mine")}, "scheduling.scheduler"),
        ({"scheduling": Scheduling(queue="a_b")}, "scheduling.queue"),
        ({"run": RunPolicy(restart_policy="Always")}, "run.restart_policy"),
        ({"run": RunPolicy(backoff_limit=-1)}, "run.backoff_limit"),
        ({"network": Network(interface="eth0 eth1")}, "network.interface"),
        ({"network": Network(port=22)}, "network.port"),
        ({"network": Network(host_network=True)}, "network.host_network"),
        ({"security": Security(user=0)}, "security.user"),
        ({"security": Security(capabilities=("IPC_LOCK",))}, "security.capabilities[0]: IPC_LOCK has no effect for"),
        ({"security": ROOT_BASELINE}, "security.capabilities[0]: IPC_LOCK is forbidden"),
        ({"security": Security(level="baseline", user=0)}, "security.user: as root (0) the workers' SSH server"),
        ({**volume(nfs=SOFT), "nfs_mode": "inline"}, "volumes[0].nfs.mount_options: an inline NFS volume has none"),
        ({**volume(nfs=NFS), "nfs_mode": "pv"}, "namespace: nfs_mode pv needs it"),
        (volume(nfs=SOFT), "namespace: nfs_mode pv needs it"),
        ({**volume(nfs=NFS), "security": Security(enforced="restricted")}, "namespace: nfs_mode pv needs it"),
        ({"security": Security(capabilities=("CAP_CHOWN",))}, "security.capabilities[0]"),
        ({"security": Security(level="baseline", enforced="restricted")}, "security.level"),
        ({**volume(nfs=NFS), "nfs_mode": "inline", "security": Security(enforced="restricted")}, "volumes[0].nfs"),
        ({"metrics": Metrics(pod_monitor=True)}, "metrics.pod_monitor"),
        ({"metrics": Metrics(port=65535), "slots": 2}, "metrics.port"),
        ({"metrics": Metrics(port=29499), "slots": 2}, "metrics.port"),
        ({"elastic": Elastic(min_workers=3, max_workers=2)}, "elastic.min_workers"),
        ({"elastic": Elastic(min_workers=3, max_workers=4)}, "workers"),
        ({"elastic": Elastic(min_workers=1, max_workers=2), "launcher": Launcher(as_worker=True)}, "launcher"),
        ({"workers": 10**6}, "workers"),
        ({"labels": {"hvdkit.io/job": "x"}}, "labels"),
        ({"labels": {"a": "b c"}}, "labels.a"),
        ({"annotations": {"a": "x" * 300_000}}, "annotations"),
        ({"provenance": {"hvdkit.io/version": "1"}}, "provenance"),
        ({"hosts": (Host(name="a"),)}, "hosts"),
        ({"image": None}, "image"),
        ({"command": ("a", "\udc80")}, "command[1]"),
    ],
)
def test_a_wrong_field_is_named(given: dict, named: str) -> None:
    with pytest.raises(InputError) as caught:
        render(spec("mpijob", **({"workers": 1} | given)))
    assert str(caught.value).startswith(named)
    assert str(caught.value).endswith((".", "…")) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "given", "named"),
    [
        ("mpijob", {"engine": "ddp"}, "engine"),
        ("mpijob", {"controller": "gloo"}, "controller"),
        ("mpijob", {"generate_name": True}, "generate_name"),
        ("indexed-job", {"elastic": Elastic(min_workers=1, max_workers=3)}, "elastic"),
        ("indexed-job", {"mpi_args": ("-x",)}, "mpi_args"),
        ("indexed-job", {"run": RunPolicy(restart_policy="OnFailure")}, "run.restart_policy"),
        ("job", {"launcher": Launcher(as_worker=True)}, "launcher.as_worker"),
        ("pytorchjob", {"engine": "horovod"}, "engine"),
        ("pytorchjob", {"independent": True}, "independent"),
        ("indexed-job", {"run": RunPolicy(clean_pods="All")}, "run.clean_pods"),
        ("indexed-job", {"launcher_image": "other"}, "launcher_image"),
        ("job", {"launcher": Launcher(resources=Resources(cpus="1"))}, "launcher.resources"),
        ("job", {"run": RunPolicy(clean_pods="None")}, "run.clean_pods"),
        ("pytorchjob", {"timeline": "/a"}, "timeline"),
        ("pytorchjob", {"autotune": True}, "autotune"),
        ("monarch", {"timeline": "/a"}, "timeline"),
        ("monarch", {"run": RunPolicy(backoff_limit=7)}, "run.backoff_limit"),
        ("monarch", {"run": RunPolicy(suspend=True)}, "run.suspend"),
        ("monarch", {"engine": "horovod"}, "engine"),
    ],
)
def test_what_a_backend_cannot_do_is_refused(backend: str, given: dict, named: str) -> None:
    with pytest.raises(InputError, match=f"^{named}: .*{backend}"):
        render(spec(backend, **given))


@pytest.mark.parametrize(
    ("backend", "longest", "given"),
    [
        ("mpijob", 54, {"workers": 10}),
        ("mpijob", 53, {"workers": 11}),
        ("mpijob", 53, {"workers": 2, "elastic": Elastic(min_workers=1, max_workers=100)}),
        ("indexed-job", 61, {"workers": 10}),
        ("indexed-job", 60, {"workers": 11}),
        ("job", 57, {"generate_name": True}),
        ("pytorchjob", 54, {"workers": 10}),
        ("monarch", 52, {}),
    ],
)
def test_names_that_leave_no_room_for_the_pods_are_refused(backend: str, longest: int, given: dict) -> None:
    render(spec(backend, name="n" * longest, **given))
    with pytest.raises(InputError, match=rf"^name: .* leaves {longest} for") as caught:
        render(spec(backend, name="n" * (longest + 1), **given))
    assert str(longest + 1) in str(caught.value)


def test_the_table_lists_every_backend_once() -> None:
    assert list(BACKENDS) == ["auto", *jobs.MODULES]
    with pytest.raises(InputError, match=r"^backend: 'local' has no manifest"):
        render(JobSpec(name="a", command=("b",), image=IMAGE))


def test_a_spec_can_be_copied_kept_and_shown() -> None:
    for made in GOLDEN.values():
        assert pickle.loads(pickle.dumps(made)) == made == replace(made)
        assert asdict(made)["name"] == made.name


def test_a_spec_keeps_no_mapping_of_somebody_else() -> None:
    labels, selector = {"a": "1"}, {"b": "1"}
    made = spec("mpijob", labels=labels, scheduling=Scheduling(node_selector=selector))
    labels["a"] = selector["b"] = "2"
    assert made.labels == {"a": "1"} and made.scheduling.node_selector == {"b": "1"}


def test_jobs_that_mount_one_nfs_folder_share_its_claim() -> None:
    first = spec("mpijob", name="a", namespace="team-a", **volume(nfs=NFS), nfs_mode="pv")
    second = spec("indexed-job", name="b", namespace="team-a", **volume(mount="/other", nfs=NFS), nfs_mode="pv")
    pairs = [[one for one in render(made) if "Persistent" in one["kind"]] for made in (first, second)]
    assert pairs[0] == pairs[1] and len(pairs[0]) == 2
    # A PV serves one claim, and other options are another mount.
    assert nfs_claim(replace(first, namespace="team-b"), NFS) != nfs_claim(first, NFS)
    assert nfs_claim(first, replace(NFS, mount_options=("soft",))) != nfs_claim(first, NFS)


def test_mount_options_of_ones_own_are_not_lost() -> None:
    kinds = [one["kind"] for one in render(spec("mpijob", namespace="a", **volume(nfs=SOFT)))]
    assert kinds == ["PersistentVolume", "PersistentVolumeClaim", "MPIJob"]
    for inline in (NFS, replace(NFS, mount_options=())):
        assert [one["kind"] for one in render(spec("mpijob", **volume(nfs=inline)))] == ["MPIJob"]


@pytest.mark.parametrize(
    ("backend", "policy", "limits"),
    [
        # A Job, and training-operator, end restarts in place when they reach the limit, new pods when they exceed it.
        ("job", "OnFailure", [0, 3, 5]),
        ("job", "Never", [0, 2, 4]),
        ("indexed-job", "Never", [0, 2, 4]),
        ("pytorchjob", "OnFailure", [0, 3, 5]),
        ("pytorchjob", "Never", [0, 2, 4]),
        ("mpijob", "OnFailure", [0, 2, 3]),  # the launcher alone is counted
        ("mpijob", "Never", [0, 1, 2]),
    ],
)
def test_the_world_may_start_again_as_often_as_was_said(backend: str, policy: str, limits: list[int]) -> None:
    def limit(worlds: int) -> int:
        run = RunPolicy(restart_policy=policy, backoff_limit=worlds)
        details = next(one for one in render(spec(backend, run=run)) if one["kind"].endswith("Job"))["spec"]
        return details.get("runPolicy", details)["backoffLimit"]

    assert [limit(worlds) for worlds in range(3)] == limits


def test_jobs_whose_names_differ_by_dashes_have_meshes_of_their_own() -> None:
    names = [monarch.mesh_name(name) for name in ("abc", "a-bc", "ab-c")]
    assert names[0] == "abc" and len(set(names)) == 3
    assert all(name.isalnum() for name in names)


@pytest.mark.parametrize("scheduling", [Scheduling(queue="team-a"), Scheduling(gang="volcano")])
def test_a_controller_waits_for_a_mesh_in_a_queue_without_limit(scheduling: Scheduling) -> None:
    def words(**given) -> list[str]:
        job = next(one for one in render(spec("monarch", **given)) if one["kind"] == "Job")
        return job["spec"]["template"]["spec"]["containers"][0]["command"]

    assert "--queued" in words(scheduling=scheduling) and "--queued" not in words()


def test_rendering_needs_nothing_heavy() -> None:
    code = (
        "import sys\nfrom hvdkit.jobs import CLUSTER_BACKENDS, render\nfrom hvdkit.jobs.spec import JobSpec\n"
        "for backend in CLUSTER_BACKENDS: render(JobSpec(name='a', command=('b',), image='c', backend=backend))\n"
        "print(sorted({'torch', 'kubernetes', 'yaml', 'click', 'socket', 'subprocess'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
