"""What the preflight says before a job is submitted: does it fit on the nodes and in the quota?"""

from typing import Any

import pytest
from golden_specs import spec

from hvdkit.cluster.capacity import never_fits, over_quota, pod_groups, unnamed_amount
from hvdkit.jobs import render
from hvdkit.jobs.resources import Resources
from hvdkit.jobs.scheduling import NodeRule, Scheduling, Toleration


def node(name: str = "node", *, labels: dict[str, str] | None = None, **more: Any) -> dict:
    details = {key: more.pop(key) for key in ("taints", "unschedulable") if key in more}
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", **{key.replace("__", "/"): v for key, v in more.items()}}
    amounts = {key.replace("nvidia/", "nvidia.com/"): value for key, value in amounts.items()}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": details,
        "status": {"allocatable": amounts},
    }


def groups(backend: str = "mpijob", **fields: Any) -> list:
    return pod_groups(render(spec(backend, **fields)))


@pytest.mark.parametrize("backend", ["mpijob", "indexed-job", "job", "pytorchjob", "monarch"])
def test_every_backend_counts_its_workers(backend: str) -> None:
    found = groups(backend, workers=3)
    assert sum(group.count for group in found if group.role == "worker") == 3
    others = {"mpijob": ["launcher"], "monarch": ["controller"]}.get(backend, [])
    assert [group.role for group in found if group.role != "worker"] == others


class TestNodes:
    def test_large_workers_never_fit_and_small_ones_would(self) -> None:
        nodes = [node(f"n{number}", nvidia__gpu="1") for number in range(32)]
        said = never_fits(groups(workers=4, resources=Resources(gpus=8)), nodes)
        assert said is not None
        assert "4 worker pods of 8 nvidia.com/gpu can never fit: 32 nodes offer 32 in all, 1 at most on one" in said
        assert "32 x 1 would fit: --workers 32 --gpus 1" in said
        assert never_fits(groups(workers=32, resources=Resources(gpus=1)), nodes) is None

    def test_the_largest_workers_that_fit_are_offered(self) -> None:
        nodes = [node(f"n{number}", nvidia__gpu="4") for number in range(8)]
        assert "--workers 8 --gpus 4" in str(never_fits(groups(workers=4, resources=Resources(gpus=8)), nodes))

    def test_what_no_division_helps(self) -> None:
        said = str(never_fits(groups(workers=4, resources=Resources(gpus=8)), [node(nvidia__gpu="3")]))
        assert "can never fit" in said and "would fit" not in said and "add nodes" in said

    def test_room_that_others_hold_now_is_room(self) -> None:
        assert never_fits(groups(workers=4, resources=Resources(cpus="4")), [node()]) is None
        assert "cpu" in str(never_fits(groups(workers=5, resources=Resources(cpus="4")), [node()]))

    def test_memory_is_named_as_people_write_it(self) -> None:
        said = str(never_fits(groups(workers=1, resources=Resources(memory="128Gi")), [node()]))
        assert "128Gi memory" in said and "64Gi" in said

    def test_only_nodes_that_may_take_the_pods_count(self) -> None:
        pods = groups("indexed-job", scheduling=Scheduling(node_selector={"pool": "gpu"}))
        assert "none of the 1 nodes" in str(never_fits(pods, [node()]))
        assert never_fits(pods, [node(labels={"pool": "gpu"})]) is None
        assert never_fits(pods, [node(labels={"pool": "gpu"}, unschedulable=True)]) is not None
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        assert never_fits(groups(), [node(taints=[taint])]) is not None
        tolerant = groups(scheduling=Scheduling(tolerations=(Toleration(key="team", value="a"),)))
        assert never_fits(tolerant, [node(taints=[taint])]) is None

    @pytest.mark.parametrize(
        ("rule", "fits"),
        [
            (NodeRule(key="zone", values=("a", "b")), True),
            (NodeRule(key="zone", operator="NotIn", values=("a",)), False),
            (NodeRule(key="zone", operator="Exists"), True),
            (NodeRule(key="zone", operator="DoesNotExist"), False),
            (NodeRule(key="speed", operator="Gt", values=("3",)), True),
            (NodeRule(key="speed", operator="Lt", values=("3",)), False),
        ],
    )
    def test_affinity(self, rule: NodeRule, fits: bool) -> None:
        pods = groups("indexed-job", scheduling=Scheduling(affinity=(rule,)))
        assert (never_fits(pods, [node(labels={"zone": "a", "speed": "4"})]) is None) == fits


class TestQuota:
    def quota(self, hard: dict[str, str], used: dict[str, str] | None = None) -> list[dict]:
        return [{"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used or {}}}]

    def test_what_is_left_must_be_enough(self) -> None:
        pods = groups("indexed-job", workers=4, resources=Resources(cpus="2", memory="1Gi"))
        assert over_quota(pods, self.quota({"requests.cpu": "8"})) is None
        said = str(over_quota(pods, self.quota({"requests.cpu": "8"}, {"requests.cpu": "500m"})))
        assert said.startswith("quota team leaves 7.5 of 8 requests.cpu") and said.endswith("the job asks for 8")
        assert "pods" in str(over_quota(pods, self.quota({"pods": "3"})))
        assert "memory" in str(over_quota(pods, self.quota({"memory": "3Gi"})))

    def test_gpus_and_unrelated_amounts(self) -> None:
        pods = groups("indexed-job", workers=2, resources=Resources(gpus=4))
        assert "requests.nvidia.com/gpu" in str(over_quota(pods, self.quota({"requests.nvidia.com/gpu": "4"})))
        assert over_quota(pods, self.quota({"count/configmaps": "0", "requests.storage": "1Gi"})) is None

    def test_a_share_that_no_pod_names_is_a_note_for_a_limit_range_may_name_it(self) -> None:
        pods, quota = groups("indexed-job", resources=Resources()), self.quota({"limits.memory": "1Ti"})
        assert over_quota(pods, quota) is None
        said = str(unnamed_amount(pods, quota))
        assert said.startswith("quota team limits limits.memory") and "LimitRange" in said and "--memory" in said
        assert unnamed_amount(groups("indexed-job", resources=Resources(memory="1Gi")), quota) is None

    def test_scoped_quotas_are_the_servers_business(self) -> None:
        quota = self.quota({"pods": "0"})
        quota[0]["spec"]["scopes"] = ["BestEffort"]
        assert over_quota(groups(), quota) is None and unnamed_amount(groups(), quota) is None
