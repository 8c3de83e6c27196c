"""Traps in any pod: resources, volumes, shared memory.

Each function looks for one thing that the schema allows and that fails, or hurts, later; it takes a pod and yields
problems.
"""

from collections.abc import Iterator

from hvdkit.checks.validate_fields import Field, Pod, words
from hvdkit.checks.validate_finding import Problem, counted, shown
from hvdkit.checks.validate_quantity import gpus, is_gpu, quantity

CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
CONTAINER_CHOICES = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
SHM = "/dev/shm"
LEAST_MEMORY = 1024**2  # a number without its suffix is below it


def choices(pod: Pod) -> Iterator[Problem]:
    """The published schemas call these fields plain strings; the API server takes only a few words."""
    fields = [(pod.spec[key], allowed) for key, allowed in CHOICES.items()]
    for container in pod.all_containers:
        fields += [(container[key], allowed) for key, allowed in CONTAINER_CHOICES.items()]
    for field, allowed in fields:
        if field.text is not None and field.text not in allowed:
            yield field.error(f"{shown(field.text)} is not one of {', '.join(allowed)}", "write one of them")


def containers_and_images(pod: Pod) -> Iterator[Problem]:
    """The schemas ask for neither an image nor a first container; the API server does."""
    if pod.spec["containers"].value == []:
        yield pod.spec["containers"].error("holds no container", "a pod needs at least one")
    for container in pod.all_containers:
        if isinstance(container.value, dict) and not container["image"].value:
            yield container["image"].error("is missing", "name the image that this container runs")


def extended_resources(pod: Pod) -> Iterator[Problem]:
    """GPUs and other devices cannot be overcommitted: the limit is what counts, and a request must equal it.

    For the same reason a part of a device cannot be asked for.
    """
    for container in pod.all_containers:
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        for resource, request in requests.entries():
            if not is_extended(resource):
                continue
            limit = limits[resource]
            if not limit.given:
                sentence = f"{what(resource)} asked for in requests only, which the API server refuses"
                yield request.error(sentence, f"write 'limits: {{{resource}: {request.value}}}' instead")
            elif None not in (quantity(limit), quantity(request)) and quantity(limit) != quantity(request):
                sentence = f"requests {request.value} but limits {limit.value}: for {what(resource)} they must be equal"
                yield request.error(sentence, "give the limit only; the request follows it")
        for resource, limit in limits.entries():
            amount = quantity(limit)
            if is_extended(resource) and amount is not None and (amount != int(amount) or amount < 0):
                yield limit.error(f"{what(resource)} in parts: {limit.value}", "ask for a whole number of them")


def is_extended(resource: str) -> bool:
    """Resources with a domain of their own are devices, except Kubernetes' own."""
    domain, _, name = resource.partition("/")
    return bool(name) and not domain.endswith("kubernetes.io")


def what(resource: str) -> str:
    return f"GPUs ({resource})" if is_gpu(resource) else resource


def requests_within_limits(pod: Pod) -> Iterator[Problem]:
    """A container that asks for more than it may use is refused."""
    for container in pod.all_containers:
        limits = container["resources"]["limits"]
        for resource, request in container["resources"]["requests"].entries():
            asked, allowed = quantity(request), quantity(limits[resource])
            if not is_extended(resource) and asked is not None and allowed is not None and asked > allowed:
                sentence = f"requests {request.value} but limits {limits[resource].value}"
                yield request.error(sentence, "lower the request or raise the limit")


def amounts(pod: Pod) -> Iterator[Problem]:
    """Suffixes that mean something else than they were meant to: 512m of memory is half a byte."""
    for container in pod.all_containers:
        for kind in ("limits", "requests"):
            memory, cpu = container["resources"][kind]["memory"], container["resources"][kind]["cpu"]
            asked = quantity(memory)
            if asked is not None and (memory.text or "").endswith("m"):
                sentence = f"{memory.value} are thousandths of a byte"
                yield memory.error(sentence, f"write {memory.value[:-1]}Mi for mebibytes")
            elif asked is not None and asked < LEAST_MEMORY:
                yield memory.error(f"{memory.value} is less than 1Mi, in which nothing runs", "write it as in 16Gi")
            if quantity(cpu) is not None and (cpu.text or "").endswith("i"):
                yield cpu.error(f"{cpu.value} has a suffix for bytes", "write processors as 4 or 500m")


def mounts_have_volumes(pod: Pod) -> Iterator[Problem]:
    """A mount of a volume that the pod does not have is refused; of a custom kind only when its pods are made."""
    names = {volume["name"].text for volume in pod.spec["volumes"]}
    names |= {claim["metadata"]["name"].text for claim in pod.claims}
    for container in pod.all_containers:
        for mount in container["volumeMounts"]:
            name = mount["name"].text
            if name is not None and name not in names:
                known = ", ".join(sorted(filter(None, names))) or "none"
                way_out = f"add a volume '{name}' to volumes, or mount one of: {known}"
                yield mount["name"].error(f"there is no volume '{name}' in this pod", way_out)


def nfs_volumes(pod: Pod) -> Iterator[Problem]:
    """An NFS volume wants the server and the exported folder apart, and the folder from its root."""
    for volume in pod.spec["volumes"]:
        yield from nfs_source(volume["nfs"])


def nfs_source(nfs: Field) -> Iterator[Problem]:
    path, server = nfs["path"], nfs["server"]
    if path.text is not None and not path.text.startswith("/"):
        yield path.error(f"{shown(path.text)} is not an absolute path", f"write /{path.text.lstrip('./')}")
    if server.text is not None and ("/" in server.text or not server.text):
        sentence = f"{shown(server.text)} is not a host"
        yield server.error(sentence, "write the server's name or address here and the folder under path")


def shared_memory(pod: Pod, ranks: int = 1) -> Iterator[Problem]:
    """A pod's /dev/shm has 64 MiB. DataLoader workers, NCCL and ranks that share a pod need more and die of SIGBUS."""
    mounts = [mount for container in pod.containers for mount in container["volumeMounts"]]
    shm = [mount["name"].text for mount in mounts if (mount["mountPath"].text or "").rstrip("/") == SHM]
    devices = sum(gpus(container) for container in pod.containers)
    if not shm and (devices or ranks > 1):
        reason = counted(devices, "GPU") if devices else f"{ranks} ranks in a pod"
        yield pod.spec["volumes"].warning(
            f"{reason} but no {SHM}: the default of 64 MiB is too small for DataLoader workers and NCCL",
            "add a volume 'emptyDir: {medium: Memory, sizeLimit: 8Gi}' and mount it at /dev/shm",
        )
    for volume in pod.spec["volumes"]:
        if volume["name"].text in shm and volume["emptyDir"].given and volume["emptyDir"]["medium"].text != "Memory":
            sentence = f"mounted at {SHM} but not memory: every access goes to the node's disk"
            yield volume["emptyDir"].warning(sentence, "add 'medium: Memory'")
        size = quantity(volume["emptyDir"]["sizeLimit"])
        limits = [quantity(container["resources"]["limits"]["memory"]) for container in pod.containers]
        if volume["name"].text in shm and size is not None and None not in limits and size > sum(filter(None, limits)):
            sentence = f"{SHM} counts as memory, of which the pod has less: it is killed before that is full"
            yield volume["emptyDir"]["sizeLimit"].warning(sentence, "raise the memory limit, or lower the size")


POD_TRAPS = (
    choices,
    containers_and_images,
    extended_resources,
    requests_within_limits,
    amounts,
    mounts_have_volumes,
    nfs_volumes,
)


def told_size(container: Field, flag: str, actual: int | None, of: Field) -> Iterator[Problem]:
    """hvdkit's entry points are told the size of the world; who edits the replicas alone gets a world that waits."""
    line = words(container)
    if not any(word.startswith("hvdkit.runtime.") for word in line) or flag not in line:
        return
    told = line[line.index(flag) + 1 : line.index(flag) + 2]
    if actual is not None and told and told[0].isdecimal() and int(told[0]) != actual:
        yield of.error(
            f"is {actual}, but hvdkit's command in {container['name'].text or 'its pod'} is told {flag} {told[0]}",
            "render it anew with the other number, or change both (and HVDKIT_WORLD_SIZE and HVDKIT_HOSTS)",
        )
