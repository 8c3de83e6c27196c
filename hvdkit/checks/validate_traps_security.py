"""Pods against the Pod Security Standards that their namespace enforces.

The API server accepts a Job, MPIJob or PyTorchJob there and refuses its pods later, where nobody looks.
"""

from collections.abc import Iterator

from hvdkit.checks.validate_fields import Field, Manifest, Pod, pods
from hvdkit.checks.validate_finding import Problem, shown

LEVELS = ("privileged", "baseline", "restricted")
ENFORCE = "pod-security.kubernetes.io/enforce"

RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
BASELINE_CAPABILITIES = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}
VOLUME_WAYS_OUT = {
    "nfs": "use a PersistentVolumeClaim on an NFS PersistentVolume ('hvdkit render --nfs-mode pv' writes both)",
    "hostPath": "use a PersistentVolumeClaim or an emptyDir",
}


def enforced(manifests: list[Manifest]) -> dict[str, str]:
    """The level that each Namespace of the input enforces."""
    found = {}
    for manifest in manifests:
        if manifest.kind == "Namespace" and manifest.api_version == "v1":
            level = manifest.root["metadata"]["labels"][ENFORCE].text
            if level in LEVELS:
                found[manifest.name] = level
    return found


def security(manifest: Manifest, level: str) -> Iterator[Problem]:
    """What the level forbids in an object's pods."""
    if level not in LEVELS[1:]:
        return
    for pod in pods(manifest):
        yield from baseline(pod, level)
        if level == "restricted":
            yield from restricted(pod)
    if level == "restricted":
        yield from injected_init_container(manifest)


def baseline(pod: Pod, level: str) -> Iterator[Problem]:
    """What both levels forbid: the node's network, processes and files, and more power than a container has."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec[key].value is True:
            yield pod.spec[key].error(f"forbidden where '{level}' is enforced", "take it out")
    for volume in pod.spec["volumes"]:
        if volume["hostPath"].given and level == "baseline":
            yield volume["hostPath"].error("forbidden where 'baseline' is enforced", VOLUME_WAYS_OUT["hostPath"])
    for container in pod.all_containers:
        context = container["securityContext"]
        if context["privileged"].value is True:
            yield context["privileged"].error(f"forbidden where '{level}' is enforced", "take it out")
        allowed = BASELINE_CAPABILITIES if level == "baseline" else {"NET_BIND_SERVICE"}
        for capability in context["capabilities"]["add"]:
            if capability.text is not None and capability.text not in allowed:
                sentence = f"{shown(capability.text)} is forbidden where '{level}' is enforced"
                yield capability.error(sentence, "take it out, or ask for a namespace that allows it")
        for port in container["ports"]:
            if port["hostPort"].integer:
                yield port["hostPort"].error(f"forbidden where '{level}' is enforced", "take it out")
    for context in contexts(pod):
        profile = context["seccompProfile"]["type"]
        if profile.text == "Unconfined":
            yield profile.error(f"Unconfined is forbidden where '{level}' is enforced", "write RuntimeDefault")


def restricted(pod: Pod) -> Iterator[Problem]:
    """What only 'restricted' asks for: harmless volumes, no root, no further power, a seccomp profile."""
    for volume in pod.spec["volumes"]:
        for kind, source in volume.entries():
            if kind != "name" and source.given and kind not in RESTRICTED_VOLUMES:
                way_out = VOLUME_WAYS_OUT.get(kind, "use a PersistentVolumeClaim")
                yield source.error(f"an inline {kind} volume is forbidden where 'restricted' is enforced", way_out)
    for context in contexts(pod):
        if context["runAsUser"].integer == 0:
            yield context["runAsUser"].error("root is forbidden where 'restricted' is enforced", "write another uid")
        if context["runAsNonRoot"].value is False:
            yield context["runAsNonRoot"].error("false is forbidden where 'restricted' is enforced", "write true")
    for container in pod.all_containers:
        missing = missing_settings(container["securityContext"], pod.spec["securityContext"])
        if isinstance(container.value, dict) and missing:
            sentence = f"'restricted' is enforced, and this container lacks {', '.join(missing)}"
            yield container["securityContext"].error(sentence, "add them; 'hvdkit render' sets them by default")


def missing_settings(own: Field, pods_own: Field) -> list[str]:
    """The settings that 'restricted' wants written out and that neither container nor pod has."""
    missing = []
    if own["runAsNonRoot"].value is None and pods_own["runAsNonRoot"].value is None:
        missing.append("runAsNonRoot: true")
    if own["allowPrivilegeEscalation"].value is not False:
        missing.append("allowPrivilegeEscalation: false")
    if "ALL" not in [capability.text for capability in own["capabilities"]["drop"]]:
        missing.append("capabilities: {drop: [ALL]}")
    profile = own["seccompProfile"] if own["seccompProfile"].given else pods_own["seccompProfile"]
    if profile["type"].text is None:
        missing.append("seccompProfile: {type: RuntimeDefault}")
    return missing


def contexts(pod: Pod) -> list[Field]:
    return [pod.spec["securityContext"], *(container["securityContext"] for container in pod.all_containers)]


def injected_init_container(manifest: Manifest) -> Iterator[Problem]:
    """training-operator puts an init container into Workers that has none of these settings.

    The worker is then never made, and the job can still show Succeeded when the master ends.
    """
    replicas = manifest.root["spec"]["pytorchReplicaSpecs"]
    if manifest.kind == "PyTorchJob" and replicas["Master"].given and replicas["Worker"].given:
        yield replicas["Worker"].warning(
            "the init container that training-operator adds to Workers is refused where 'restricted' is enforced",
            "give it a securityContext in the operator's configuration, or use Workers only, with elasticPolicy",
        )
