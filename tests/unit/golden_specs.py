"""The specs behind the files in `golden/`: one a file, together every backend and every field."""

from hvdkit.jobs.policy import Elastic, EnvSource, Metrics, Network, RunPolicy
from hvdkit.jobs.resources import Launcher, Resources
from hvdkit.jobs.scheduling import NodeRule, Scheduling, Toleration
from hvdkit.jobs.security import Security
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.volumes import EmptyDir, HostPath, Nfs, Volume

IMAGE = "registry.example.com/team/train:1.0"
COMMAND = ("python", "train.py", "--epochs", "3")

CPU = Resources(cpus="4", memory="8Gi")
GPU = Resources(cpus="64", memory="512Gi", gpus=8)
NFS = (
    Volume(mount="/data", nfs=Nfs(server="10.0.0.5", path="/exports/data"), read_only=True),
    Volume(mount="/results", nfs=Nfs(server="nfs.example.com", path="/exports/results")),
)
PVC = (Volume(mount="/data", pvc="training-data"),)
RESTRICTED = Security(enforced="restricted")
ROOT = Security(level="privileged", user=0, capabilities=("IPC_LOCK",))


def spec(backend: str, **fields) -> JobSpec:
    common = {"name": "train", "command": COMMAND, "image": IMAGE, "workers": 2, "resources": CPU}
    return JobSpec(**(common | {"backend": backend} | fields))


def gpu(backend: str, **fields) -> JobSpec:
    return spec(backend, **({"workers": 4, "slots": 8, "resources": GPU, "shm": "64Gi"} | fields))


# What only backends with a launcher, and only those with Horovod, take.
LAUNCHER = {
    "launcher_image": "registry.example.com/team/launcher:1.0",
    "launcher": Launcher(resources=Resources(cpus="1", memory="2Gi")),
}
HOROVOD = {"timeline": "/results/timeline.json", "autotune": True}


def everything(backend: str, **fields) -> JobSpec:
    """Nearly every field that all backends take, so that a change to any of them shows in a file."""
    common = {
        "namespace": "team-a",
        "workers": 4,
        "slots": 2,
        "threads": 3,
        "pull_policy": "Always",
        "pull_secrets": ("registry-password",),
        "working_dir": "/code/project",
        "env": {"NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "3", "GREETING": "grüß $(WHO), it's 1e3 $$"},
        "env_from": {
            "TOKEN": EnvSource(secret="tracking", key="token"),
            "MODE": EnvSource(config_map="settings", key="mode", optional=True),
            "POD_IP": EnvSource(field="status.podIP"),
        },
        "resources": Resources(
            cpus="8",
            limit_cpus=True,
            memory="64Gi",
            gpus=2,
            gpu_resource="amd.com/gpu",
            extended={"rdma/hca_shared": "1"},
        ),
        "shm": "16Gi",
        "volumes": (
            *NFS,
            Volume(mount="/code", pvc="code", read_only=True, sub_path="releases/current"),
            Volume(mount="/dev/infiniband", host_path=HostPath(path="/dev/infiniband", type="Directory")),
            Volume(mount="/scratch", empty_dir=EmptyDir(size="100Gi")),
            Volume(mount="/cache", empty_dir=EmptyDir(memory=True)),
            Volume(mount="/settings", config_map="settings"),
            Volume(mount="/keys", secret="keys"),
        ),
        "nfs_mode": "pv",
        "scheduling": Scheduling(
            node_selector={"example.com/pool": "training"},
            affinity=(
                NodeRule(key="example.com/gpu-model", values=("mi300", "mi250")),
                NodeRule(key="example.com/spot", operator="DoesNotExist", weight=50),
            ),
            tolerations=(
                Toleration(key="example.com/training", value="yes", effect="NoSchedule"),
                Toleration(key="node.kubernetes.io/unreachable", effect="NoExecute", seconds=60),
            ),
            placement="spread",
            priority_class="training",
            gang="coscheduling",
            gang_timeout=300,
            queue="team-a",
        ),
        "run": RunPolicy(backoff_limit=0, deadline=86400, ttl=3600, grace=120),
        "network": Network(interface="eth0,eth1", host_network=True, port=12345),
        "security": Security(level="privileged", user=2000, group=3000, read_only_root=False),
        "service_account": "trainer",
        "metrics": Metrics(port=9400, pod_monitor=True),
        "labels": {"example.com/team": "vision"},
        "annotations": {"example.com/ticket": "VIS-42"},
        "provenance": {"git-commit": "0123abc", "version": "1.0"},
    }
    return spec(backend, **(common | fields))


GOLDEN = {
    "mpijob-cpu": spec("mpijob"),
    "mpijob-gpu": gpu("mpijob"),
    "mpijob-nfs-inline": spec("mpijob", workers=4, volumes=NFS),
    "mpijob-nfs-pv": spec("mpijob", namespace="team-a", volumes=NFS, nfs_mode="pv"),
    "mpijob-pvc": spec("mpijob", volumes=PVC, working_dir="/data/code"),
    "mpijob-elastic": spec("mpijob", workers=4, elastic=Elastic(min_workers=2, max_workers=8)),
    "mpijob-restricted": spec("mpijob", namespace="team-a", volumes=NFS, security=RESTRICTED),
    "mpijob-launcher-as-worker": gpu("mpijob", launcher=Launcher(as_worker=True)),
    "mpijob-on-failure": spec("mpijob", run=RunPolicy(restart_policy="OnFailure", clean_pods="All", start_timeout=60)),
    "mpijob-everything": everything("mpijob", mpi_args=("--mca", "btl_openib_allow_ib", "1"), **LAUNCHER, **HOROVOD),
    "indexed-job-cpu": spec("indexed-job"),
    "indexed-job-gpu-ddp": gpu("indexed-job", engine="ddp"),
    "indexed-job-nfs-inline": spec("indexed-job", volumes=NFS),
    "indexed-job-nfs-pv": spec("indexed-job", namespace="team-a", volumes=NFS, nfs_mode="pv"),
    "indexed-job-pvc": spec("indexed-job", volumes=PVC),
    "indexed-job-root": spec("indexed-job", security=ROOT),
    "indexed-job-restricted": spec("indexed-job", namespace="team-a", volumes=NFS, security=RESTRICTED),
    "indexed-job-everything": everything("indexed-job", **HOROVOD),
    "indexed-job-volcano": spec("indexed-job", scheduling=Scheduling(gang="volcano", queue="team-a")),
    "job-cpu": spec("job"),
    "job-gpu": gpu("job"),
    "job-nfs-inline": spec("job", volumes=NFS),
    "job-nfs-pv": spec("job", namespace="team-a", volumes=NFS, nfs_mode="pv"),
    "job-pvc-generate-name": spec("job", volumes=PVC, generate_name=True),
    "job-independent": spec("job", independent=True),
    "job-restricted": spec("job", namespace="team-a", volumes=NFS, security=RESTRICTED),
    "job-everything": everything("job", **HOROVOD),
    "pytorchjob-cpu": spec("pytorchjob"),
    "pytorchjob-gpu": gpu("pytorchjob"),
    "pytorchjob-nfs-inline": spec("pytorchjob", volumes=NFS),
    "pytorchjob-nfs-pv": spec("pytorchjob", namespace="team-a", volumes=NFS, nfs_mode="pv"),
    "pytorchjob-pvc-one": spec("pytorchjob", workers=1, volumes=PVC),
    "pytorchjob-elastic": spec("pytorchjob", workers=4, elastic=Elastic(min_workers=2, max_workers=8)),
    "pytorchjob-restricted": spec("pytorchjob", namespace="team-a", volumes=NFS, security=RESTRICTED),
    "pytorchjob-everything": everything("pytorchjob"),
    "monarch-cpu": spec("monarch"),
    "monarch-gpu": gpu("monarch", scheduling=Scheduling(queue="team-a", placement="pack")),
    "monarch-nfs-inline": spec("monarch", volumes=NFS),
    "monarch-nfs-pv": spec("monarch", namespace="team-a", volumes=NFS, nfs_mode="pv"),
    "monarch-pvc": spec("monarch", volumes=PVC),
    "monarch-dashes": spec("monarch", name="train-it"),
    "monarch-restricted": spec("monarch", namespace="team-a", volumes=NFS, security=RESTRICTED),
    "monarch-everything": everything("monarch", **LAUNCHER),
}
