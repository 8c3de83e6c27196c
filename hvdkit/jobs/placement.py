"""The scheduling of a JobSpec as Kubernetes writes it: nodes, hosts, gangs. Pure."""

from hvdkit.jobs.metadata import WORKER, Object, metadata, own_pods
from hvdkit.jobs.scheduling import NodeRule, Toleration
from hvdkit.jobs.spec import JobSpec

GANG_SCHEDULER_NAMES = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
_PACK_WEIGHT = 100  # the most that a wish can weigh


def pod_fields(spec: JobSpec, component: str) -> Object:
    """The fields of a pod's spec that say where it may run."""
    scheduling = spec.scheduling
    found: Object = {}
    if scheduling.scheduler:
        found["schedulerName"] = scheduling.scheduler
    if scheduling.priority_class:
        found["priorityClassName"] = scheduling.priority_class
    if scheduling.node_selector:
        found["nodeSelector"] = dict(scheduling.node_selector)
    tolerations = [_toleration(one) for one in scheduling.tolerations]
    if spec.resources.gpus:
        # Clusters keep other pods off their GPU nodes with a taint of the resource's name. The launcher must get
        # there too: a node selector may leave it no other node.
        tolerations.append({"key": spec.resources.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        found["tolerations"] = tolerations
    affinity = _node_affinity(scheduling.affinity)
    workers = {"matchLabels": own_pods(spec, WORKER)}
    if component == WORKER and scheduling.placement == "pack":
        term = {"labelSelector": workers, "topologyKey": scheduling.topology_key}
        wish = {"weight": _PACK_WEIGHT, "podAffinityTerm": term}
        affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    if affinity:
        found["affinity"] = affinity
    if component == WORKER and scheduling.placement == "spread":
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": scheduling.topology_key,
                "whenUnsatisfiable": "DoNotSchedule",
                # Else a tainted node where no worker may run counts as one with none, and the skew is never met.
                "nodeTaintsPolicy": "Honor",
                "labelSelector": workers,
            }
        ]
    return found


def scheduling_policy(spec: JobSpec, members: int) -> Object:
    """The `schedulingPolicy` of Kubeflow's jobs, from which their operator makes the PodGroup."""
    scheduling = spec.scheduling
    found: Object = {"minAvailable": members}
    if scheduling.gang == "volcano" and scheduling.queue:
        found["queue"] = scheduling.queue
    if scheduling.priority_class:
        found["priorityClass"] = scheduling.priority_class
    if scheduling.gang_timeout:
        found["scheduleTimeoutSeconds"] = scheduling.gang_timeout
    return found


def pod_group(spec: JobSpec, members: int) -> list[Object]:
    """The PodGroup of a job whose controller makes none itself; empty without a gang."""
    scheduling = spec.scheduling
    if scheduling.gang is None:
        return []
    details: Object = {"minMember": members}
    if scheduling.gang == "volcano":
        api = "scheduling.volcano.sh/v1beta1"
        if scheduling.queue:
            details["queue"] = scheduling.queue
        if scheduling.priority_class:
            details["priorityClassName"] = scheduling.priority_class
    else:
        api = "scheduling.x-k8s.io/v1alpha1"
        if scheduling.gang_timeout:
            details["scheduleTimeoutSeconds"] = scheduling.gang_timeout
    return [{"apiVersion": api, "kind": "PodGroup", "metadata": metadata(spec, "gang"), "spec": details}]


def join_gang(spec: JobSpec, template: Object) -> None:
    """Make a pod template's pods members of the PodGroup."""
    if spec.scheduling.gang is None:
        return
    meta = template["metadata"]
    if spec.scheduling.gang == "volcano":
        meta.setdefault("annotations", {})["scheduling.k8s.io/group-name"] = spec.name
    else:
        meta["labels"]["scheduling.x-k8s.io/pod-group"] = spec.name
    template["spec"].setdefault("schedulerName", GANG_SCHEDULER_NAMES[spec.scheduling.gang])


def _toleration(one: Toleration) -> Object:
    found: Object = {"key": one.key} if one.key else {}
    found["operator"] = "Exists" if one.value is None else "Equal"
    if one.value is not None:
        found["value"] = one.value
    if one.effect:
        found["effect"] = one.effect
    if one.seconds is not None:
        found["tolerationSeconds"] = one.seconds
    return found


def _node_affinity(rules: tuple[NodeRule, ...]) -> Object:
    musts = [_expression(rule) for rule in rules if rule.weight is None]
    wishes = [
        {"weight": rule.weight, "preference": {"matchExpressions": [_expression(rule)]}}
        for rule in rules
        if rule.weight is not None
    ]
    found: Object = {}
    if musts:
        terms = {"nodeSelectorTerms": [{"matchExpressions": musts}]}
        found["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    if wishes:
        found["preferredDuringSchedulingIgnoredDuringExecution"] = wishes
    return {"nodeAffinity": found} if found else {}


def _expression(rule: NodeRule) -> Object:
    values = {"values": list(rule.values)} if rule.values else {}
    return {"key": rule.key, "operator": rule.operator, **values}
