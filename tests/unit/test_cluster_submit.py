"""Preflight and submit against a scripted API: what is asked, in which order, and what is taken back."""

from dataclasses import replace

import pytest
from golden_specs import spec
from scripted_api import SERVED, Api, Request, api

from hvdkit.cluster.api import ApiError
from hvdkit.cluster.preflight import choose_backend, preflight
from hvdkit.cluster.submit import submit
from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs import CLUSTER_BACKENDS, render
from hvdkit.jobs.resources import Resources
from hvdkit.jobs.volumes import Nfs, Volume


class TestPreflight:
    def test_all_is_well(self, tmp_path, monkeypatch) -> None:
        with api(Api(), tmp_path, monkeypatch) as (cluster, _):
            ready = preflight(cluster, spec("mpijob"))
        assert ready.objects == render(spec("mpijob")) and ready.notes == []

    def test_a_namespace_that_is_not_there(self, tmp_path, monkeypatch) -> None:
        with api(Api(namespace=None), tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(EnvironmentProblem, match=r"there is no namespace 'default' .*kubectl create namespace"):
                preflight(cluster, spec("mpijob"))

    def test_a_kind_that_is_not_served(self, tmp_path, monkeypatch) -> None:
        with api(Api(served={}), tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(EnvironmentProblem, match=r"does not serve MPIJob of kubeflow.org/v2beta1; install"):
                preflight(cluster, spec("mpijob"))
            preflight(cluster, spec("indexed-job"))

    @pytest.mark.parametrize(
        ("backend", "verb", "resource"),
        [
            ("mpijob", "create", "mpijobs"),
            ("mpijob", "watch", "mpijobs"),
            ("mpijob", "watch", "pods"),
            ("mpijob", "watch", "jobs"),  # of the launcher
            ("mpijob", "list", "pods"),
            ("indexed-job", "patch", "services"),  # so that they go with the job
            ("indexed-job", "patch", "networkpolicies"),
            ("monarch", "watch", "monarchmeshes"),
            ("monarch", "patch", "monarchmeshes"),
            ("monarch", "patch", "rolebindings"),
        ],
    )
    def test_a_right_that_is_missing(self, backend: str, verb: str, resource: str, tmp_path, monkeypatch) -> None:
        served = {**SERVED, "monarch.pytorch.org/v1alpha1": ["MonarchMesh"]}
        with api(Api(forbidden={(verb, resource)}, served=served), tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(EnvironmentProblem, match=f"you may not {verb} {resource} in namespace 'default'"):
                preflight(cluster, spec(backend))

    def test_rights_that_a_launch_has_no_use_for_may_be_missing(self, tmp_path, monkeypatch) -> None:
        forbidden = {("patch", "mpijobs"), ("patch", "persistentvolumeclaims"), ("patch", "persistentvolumes")}
        forbidden |= {("watch", "monarchmeshes"), ("watch", "services")}
        volume = Volume(mount="/data", nfs=Nfs(server="nfs", path="/data"))
        job = spec("mpijob", volumes=(volume,), nfs_mode="pv", namespace="default")
        with api(Api(forbidden=forbidden), tmp_path, monkeypatch) as (cluster, _):
            assert preflight(cluster, job).objects[0]["kind"] == "PersistentVolume"

    def test_nfs_comes_through_a_pv_where_restricted_is_enforced(self, tmp_path, monkeypatch) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"metadata": {"name": "default", "labels": labels}}
        job = spec("mpijob", volumes=(Volume(mount="/data", nfs=Nfs(server="nfs", path="/data")),))
        with api(Api(namespace=namespace), tmp_path, monkeypatch) as (cluster, _):
            ready = preflight(cluster, job)
        kinds = [made["kind"] for made in ready.objects]
        assert kinds[:2] == ["PersistentVolume", "PersistentVolumeClaim"] and "inline" not in str(ready.notes)
        assert ready.notes == ["namespace default enforces restricted: NFS is mounted through a PV and a claim"]
        assert ready.objects[0]["spec"]["claimRef"]["namespace"] == "default"

    @pytest.mark.parametrize("enforced", ["", "restricted"])
    @pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
    def test_what_is_sent_is_what_a_dry_run_prints(self, backend: str, enforced: str, tmp_path, monkeypatch) -> None:
        """As the README says: with backend, name and nfs_mode given; a PyTorchJob must know what is enforced."""
        labels = {"pod-security.kubernetes.io/enforce": enforced} if enforced else {}
        volume = Volume(mount="/data", nfs=Nfs(server="nfs", path="/data"))
        job = spec(backend, volumes=(volume,), nfs_mode="pv", namespace="default")
        told = replace(job, security=replace(job.security, enforced=enforced or None))
        served = {**SERVED, "monarch.pytorch.org/v1alpha1": ["MonarchMesh"]}
        namespace = {"metadata": {"name": "default", "labels": labels}}
        with api(Api(namespace=namespace, served=served), tmp_path, monkeypatch) as (cluster, _):
            sent = preflight(cluster, job).objects
        assert sent == render(told)
        assert (sent == render(job)) == (backend != "pytorchjob" or not enforced)

    def test_what_can_never_fit_is_said_before(self, tmp_path, monkeypatch) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1", "pods": "110"}
        nodes = [{"metadata": {"name": f"n{n}"}, "status": {"allocatable": amounts}} for n in range(32)]
        job = spec("mpijob", workers=4, resources=Resources(gpus=8))
        with api(Api(nodes=nodes), tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(EnvironmentProblem, match=r"can never fit.*--workers 32 --gpus 1"):
                preflight(cluster, job)
            assert "can never fit" in preflight(cluster, job, check_capacity=False).notes[0]

    def test_a_quota_on_what_the_pods_do_not_name_is_a_note(self, tmp_path, monkeypatch) -> None:
        quota = {"metadata": {"name": "team"}, "spec": {"hard": {"limits.cpu": "100"}}}
        with api(Api(quotas=[quota]), tmp_path, monkeypatch) as (cluster, _):
            (note,) = preflight(cluster, spec("indexed-job")).notes
        assert "quota team limits limits.cpu" in note and note.endswith("add --cpus and limit_cpus")

    def test_auto_takes_what_the_cluster_serves(self, tmp_path, monkeypatch) -> None:
        with api(Api(), tmp_path, monkeypatch) as (cluster, _):
            assert choose_backend(cluster) == ("mpijob", "context test serves MPIJob")
        with api(Api(served={}), tmp_path, monkeypatch) as (cluster, _):
            assert choose_backend(cluster)[0] == "indexed-job"


class TestSubmit:
    def test_everything_is_tried_first_and_belongs_to_the_job_then(self, tmp_path, monkeypatch) -> None:
        server, job = Api(), spec("indexed-job")
        with api(server, tmp_path, monkeypatch) as (cluster, _):
            made = submit(cluster, job, render(job))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": "uid-Job"}
        handed = [f"PATCH {job.name} {{'ownerReferences': [{owner}]}}"] * 2
        creations = ["services", "networkpolicies", "jobs"]
        tried, sent = ([f"{verb} {kind}" for kind in creations] for verb in ("POST dry", "POST"))
        assert server.log == tried + sent + handed
        assert [body for _, body in server.made] == render(job)  # as the dry run prints it
        assert (made.name, made.uid, made.backend) == (job.name, "uid-Job", "indexed-job")

    def test_what_cannot_be_finished_is_taken_back(self, tmp_path, monkeypatch) -> None:
        server = Api(refuse={"Job": (403, "late", "exceeded quota")})
        job = spec("indexed-job")
        with api(server, tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(ApiError, match="exceeded quota"):
                submit(cluster, job, render(job))
        assert server.log[-2:] == [
            f"DELETE {job.name} {{'uid': 'uid-NetworkPolicy'}}",
            f"DELETE {job.name} {{'uid': 'uid-Service'}}",
        ]

    def test_a_refused_dry_run_makes_nothing(self, tmp_path, monkeypatch) -> None:
        server = Api(refuse={"Job": (422, "Invalid", "spec.template: Invalid value")})
        with api(server, tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(InputError, match=r"the Job '.*' was refused; the API server says: spec.template"):
                submit(cluster, spec("indexed-job"), render(spec("indexed-job")))
        assert server.made == []

    def test_a_role_binding_is_not_tried_before_its_role_is_there(self, tmp_path, monkeypatch) -> None:
        """As the API server does it: it looks at what the Role gives, and a dry run makes none."""
        server, job = Api(), spec("monarch")

        def answer(request: Request) -> None:
            roles = [kind for kind, _ in server.made if kind == "Role"]
            if request.command == "POST" and request.body["kind"] == "RoleBinding" and not roles:
                request.status(404, "NotFound", 'roles.rbac.authorization.k8s.io "train" not found')
            else:
                server(request)

        with api(answer, tmp_path, monkeypatch) as (cluster, _):
            submit(cluster, job, render(job))
        assert [body for _, body in server.made] == render(job)

    def test_a_name_that_is_taken(self, tmp_path, monkeypatch) -> None:
        job = spec("mpijob")
        server = Api(refuse={"MPIJob": (409, "AlreadyExists", "exists")})
        live = {**render(job)[-1]}
        live["metadata"] = {**live["metadata"], "uid": "1"}

        def answer(request: Request) -> None:
            if request.command == "GET" and request.route.endswith(f"/mpijobs/{job.name}"):
                request.json(200, live)
            else:
                server(request)

        with api(answer, tmp_path, monkeypatch) as (cluster, _):
            with pytest.raises(InputError, match=f"there is a job '{job.name}' .*choose another --name.*hvdkit delete"):
                submit(cluster, job, render(job))
        assert server.made == []

    @pytest.mark.parametrize(
        ("phase", "refused"), [("Bound", False), ("Available", False), ("Released", True), (None, False)]
    )
    def test_a_volume_that_takes_no_new_claim(self, phase: str | None, refused: bool, tmp_path, monkeypatch) -> None:
        volume = Volume(mount="/data", nfs=Nfs(server="nfs", path="/data"))
        job = spec("mpijob", volumes=(volume,), nfs_mode="pv", namespace="default")
        server = Api(refuse={"PersistentVolume": (409, "AlreadyExists", "exists")})

        def answer(request: Request) -> None:
            if request.command == "GET" and "/persistentvolumes/" in request.route:
                if phase is None:
                    request.status(403, "Forbidden", "you may not get persistentvolumes")
                else:
                    request.json(200, {"metadata": {"name": "x"}, "status": {"phase": phase}})
            else:
                server(request)

        with api(answer, tmp_path, monkeypatch) as (cluster, _):
            if refused:
                with pytest.raises(EnvironmentProblem, match=r"--nfs: the PersistentVolume .*`kubectl delete pv "):
                    submit(cluster, job, render(job))
            else:
                submit(cluster, job, render(job))
        assert [kind for kind, _ in server.made] == ([] if refused else ["PersistentVolumeClaim", "MPIJob"])

    def test_a_server_that_says_later_is_asked_later(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("hvdkit.cluster.api.pause", lambda attempt, error=None: 0.01)
        server, times = Api(), []

        def answer(request: Request) -> None:
            times.append(request.command)
            if request.command == "POST" and len(times) % 2:
                request.status(429, "TooManyRequests", "later", Retry_After="1")
            else:
                server(request)

        with api(answer, tmp_path, monkeypatch) as (cluster, _):
            submit(cluster, spec("mpijob"), render(spec("mpijob")))
        assert [kind for kind, _ in server.made] == ["MPIJob"]

    @pytest.mark.parametrize("outcome", ["made", "of somebody else", "not made"])
    def test_a_lost_answer_is_no_failure_where_the_job_was_made(self, outcome: str, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("hvdkit.cluster.api.pause", lambda attempt, error=None: 0.01)
        server, job, lost = Api(), spec("indexed-job"), []

        def answer(request: Request) -> None:
            if request.command == "POST" and request.body["kind"] == "Job" and "dryRun" not in request.query:
                labels = request.body["metadata"]["labels"] if outcome == "made" else {}
                if outcome != "not made":
                    meta = {**request.body["metadata"], "labels": labels, "uid": "uid-Job"}
                    lost.append({**request.body, "metadata": meta})
                request.cut()
            elif request.command == "GET" and request.route.endswith(f"/jobs/{job.name}") and lost:
                request.json(200, lost[0])
            else:
                server(request)

        with api(answer, tmp_path, monkeypatch) as (cluster, _):
            if outcome == "made":
                assert submit(cluster, job, render(job)).uid == "uid-Job"
            else:
                with pytest.raises(ApiError, match="does not answer"):
                    submit(cluster, job, render(job))
        deleted = [one for one in server.log if one.startswith("DELETE")]
        assert len(deleted) == (0 if outcome == "made" else 2) and not any("uid-Job" in one for one in deleted)
