"""Whether pods can ever fit: on the nodes that there are, and in the namespace's quota. Pure.

Against all that a node offers, not what is free now: a job that must wait is none that can never run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hvdkit.cluster.kinds import Object
from hvdkit.jobs.rules import parse_quantity

Amounts = dict[str, float]


@dataclass(frozen=True)
class PodGroup:
    """So many equal pods."""

    role: str
    count: int
    template: Object


def pod_groups(objects: list[Object]) -> list[PodGroup]:
    """The pods that the rendered objects ask for."""
    found: list[PodGroup] = []
    for made in objects:
        details = made.get("spec") or {}
        if made["kind"] == "Job":
            count = details.get("parallelism") or 1
            role = "controller" if made["metadata"]["labels"].get("hvdkit.io/backend") == "monarch" else "worker"
            found.append(PodGroup(role, count, details["template"]))
        elif made["kind"] == "MonarchMesh":
            found.append(PodGroup("worker", details["replicas"], details["podTemplate"]))
        else:
            replicas = details.get("mpiReplicaSpecs") or details.get("pytorchReplicaSpecs") or {}
            for role, replica in replicas.items():
                word = "launcher" if role == "Launcher" else "worker"
                found.append(PodGroup(word, replica["replicas"], replica["template"]))
    return found


def requests(template: Object, *, limits: bool = False) -> Amounts:
    """What a pod asks for; where it only has a limit, Kubernetes takes that."""
    total: Amounts = {}
    for container in template["spec"]["containers"]:
        resources = container.get("resources") or {}
        asked = resources.get("limits") or {}
        if not limits:
            asked = {**asked, **(resources.get("requests") or {})}
        for name, amount in asked.items():
            total[name] = total.get(name, 0.0) + (parse_quantity(str(amount)) or 0.0)
    return total


def never_fits(groups: list[PodGroup], nodes: list[Object]) -> str | None:
    """Why pods can never fit on these nodes, and what would; None when they can."""
    for group in groups:
        asked = requests(group.template)
        suitable = [node for node in nodes if _suits(group.template["spec"], node)]
        if not suitable:
            return (
                f"none of the {len(nodes)} nodes takes the {group.role} pods: their labels, taints or state rule "
                "them out; compare --node-selector and tolerations with kubectl describe nodes"
            )
        room = sum(_times(asked, _allocatable(node)) for node in suitable)
        if room < group.count:
            return _explain(group, asked, suitable, int(room))
    return None


def over_quota(groups: list[PodGroup], quotas: list[Object]) -> str | None:
    """Which quota of the namespace the pods would exceed, or None."""
    total: Amounts = {"pods": 0.0}
    for group in groups:
        total["pods"] += group.count
        for prefix, amounts in (("requests.", requests(group.template)), ("limits.", _limits(group))):
            for name, amount in amounts.items():
                total[prefix + name] = total.get(prefix + name, 0.0) + amount * group.count
    for short in ("cpu", "memory"):
        if f"requests.{short}" in total:
            total[short] = total[f"requests.{short}"]
    for quota, name, hard in _hard(quotas):
        used = parse_quantity(str(((quota.get("status") or {}).get("used") or {}).get(name, "0"))) or 0.0
        asked = total.get(name)
        if asked is not None and used + asked > hard * (1 + 1e-9):
            free = amount_text(name, max(0.0, hard - used))
            return (
                f"quota {quota['metadata']['name']} leaves {free} of {amount_text(name, hard)} {name} in this "
                f"namespace, and the job asks for {amount_text(name, asked)}"
            )
    return None


def unnamed_amount(groups: list[PodGroup], quotas: list[Object]) -> str | None:
    """Which amount a quota wants every pod to name, and these do not; a LimitRange may do it for them."""
    for quota, name, _ in _hard(quotas):
        missing = _without(groups, name)
        if missing:
            flag = {"memory": "--memory", "cpu": "--cpus"}[name.rpartition(".")[2]]
            flag += " and limit_cpus" if name == "limits.cpu" else ""
            return (
                f"quota {quota['metadata']['name']} limits {name}, and the {missing} pods do not say theirs; unless a "
                f"LimitRange of the namespace does, they are refused: then add {flag}"
            )
    return None


def _hard(quotas: list[Object]) -> Iterator[tuple[Object, str, float]]:
    """Each amount that a quota limits."""
    for quota in quotas:
        details = quota.get("spec") or {}
        if details.get("scopeSelector") or details.get("scopes"):
            continue  # for some pods only, and which ones the server knows best
        for name, text in ((quota.get("status") or {}).get("hard") or details.get("hard") or {}).items():
            yield quota, name, parse_quantity(str(text)) or 0.0


def _without(groups: list[PodGroup], name: str) -> str | None:
    """The role whose pods a quota on this amount would refuse, because they name none."""
    short = name.rpartition(".")[2]
    if name not in ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"):
        return None
    for group in groups:
        if short not in requests(group.template, limits=name.startswith("limits.")):
            return group.role
    return None


def _limits(group: PodGroup) -> Amounts:
    return requests(group.template, limits=True)


def _explain(group: PodGroup, asked: Amounts, nodes: list[Object], room: int) -> str:
    """One sentence: what is asked for, what there is, and what would fit."""
    tightest = min(asked, key=lambda name: _room_for(name, asked[name], nodes), default="pods")
    per_node = [_allocatable(node).get(tightest, 0.0) for node in nodes]
    wanted = f"{group.count} {group.role} pods of {amount_text(tightest, asked.get(tightest, 1.0))} {tightest}"
    largest, total = amount_text(tightest, max(per_node)), amount_text(tightest, sum(per_node))
    sentence = (
        f"{wanted} can never fit: {len(nodes)} {'node offers' if len(nodes) == 1 else 'nodes offer'} {total} in all, "
        f"{largest} at most on one, room for {room}"
    )
    if group.role == "worker" and "/" in tightest and (better := _smaller_workers(group, asked, nodes, tightest)):
        workers, each = better
        return f"{sentence}; {workers} x {each} would fit: --workers {workers} --gpus {each}"
    return f"{sentence}; ask for less, or add nodes"


def _smaller_workers(group: PodGroup, asked: Amounts, nodes: list[Object], name: str) -> tuple[int, int] | None:
    """The same number of GPUs on more, smaller workers: the largest ones that fit."""
    each, total = int(asked[name]), int(asked[name]) * group.count
    for smaller in range(each - 1, 0, -1):
        if total % smaller:
            continue
        share = {key: amount * smaller / each for key, amount in asked.items()} | {name: float(smaller)}
        if sum(_times(share, _allocatable(node)) for node in nodes) >= total // smaller:
            return total // smaller, smaller
    return None


def _room_for(name: str, amount: float, nodes: list[Object]) -> float:
    return sum(_times({name: amount}, _allocatable(node)) for node in nodes)


def _times(asked: Amounts, offered: Amounts) -> float:
    """How many such pods a node can hold."""
    counts = [math.floor(offered.get(name, 0.0) / amount + 1e-9) for name, amount in asked.items() if amount > 0]
    return min([*counts, offered.get("pods", math.inf)])


def _allocatable(node: Object) -> Amounts:
    status = node.get("status") or {}
    offered = status.get("allocatable") or status.get("capacity") or {}
    return {name: parse_quantity(str(amount)) or 0.0 for name, amount in offered.items()}


def _suits(pod: Object, node: Object) -> bool:
    """Whether a node may take the pod: its labels, taints and state. Wishes do not count."""
    details, labels = node.get("spec") or {}, (node.get("metadata") or {}).get("labels") or {}
    if details.get("unschedulable"):
        return False
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    if not _affine(pod, labels):
        return False
    lasting = [taint for taint in details.get("taints") or [] if not taint["key"].startswith("node.kubernetes.io/")]
    return all(_tolerated(taint, pod.get("tolerations") or []) for taint in lasting)


def _affine(pod: Object, labels: dict[str, str]) -> bool:
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    must = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = must.get("nodeSelectorTerms") or []
    return not terms or any(all(_matches(rule, labels) for rule in _rules(term)) for term in terms)


def _rules(term: Object) -> Iterator[Object]:
    yield from term.get("matchExpressions") or []


def _matches(rule: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    if rule["operator"] == "In":
        return value in values
    if rule["operator"] == "NotIn":
        return value not in values
    if rule["operator"] in ("Exists", "DoesNotExist"):
        return (value is not None) == (rule["operator"] == "Exists")
    if value is None or not value.lstrip("-").isdecimal():
        return False
    return int(value) > int(values[0]) if rule["operator"] == "Gt" else int(value) < int(values[0])


def _tolerated(taint: Object, tolerations: list[Object]) -> bool:
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint.get("effect"))
        and (one.get("operator") == "Exists" or (one.get("value") or "") == (taint.get("value") or ""))
        for one in tolerations
    )


def amount_text(name: str, amount: float) -> str:
    """An amount as people write it."""
    if "memory" in name or "storage" in name:
        return f"{amount / 2**30:.4g}Gi"
    return f"{amount:.4g}"
