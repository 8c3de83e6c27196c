"""Traps of Kubernetes' own Jobs, and of Monarch's meshes: pods that are to train as one world."""

import re
from collections.abc import Iterator

from hvdkit.checks.validate_fields import Manifest, Pod, pods, words
from hvdkit.checks.validate_finding import Problem, shown
from hvdkit.checks.validate_names import label_1123
from hvdkit.checks.validate_traps_pods import shared_memory, told_size

MESH_NAME = re.compile(r"[a-z][a-z0-9]*")
DISTRIBUTED = ("torchrun", "torch.distributed", "horovod", "hvdkit", "mpirun", "MASTER_ADDR")


def restart_policy(manifest: Manifest) -> Iterator[Problem]:
    """A pod's own default is Always, which a Job refuses: so a Job always has to say it."""
    spec = manifest.root["spec"]
    policy = spec["template"]["spec"]["restartPolicy"]
    if isinstance(spec["template"]["spec"].value, dict) and policy.text in (None, "Always"):
        given = "Always" if policy.text else "not given, so Always"
        yield policy.error(f"{given}, which a Job refuses", "write Never or OnFailure")
    elif spec["podFailurePolicy"].given and policy.text == "OnFailure":
        yield policy.error("podFailurePolicy works with Never only", "write Never")


def indexed(manifest: Manifest) -> Iterator[Problem]:
    """Pods of one world wait for each other, so all indices have to run at the same time."""
    spec = manifest.root["spec"]
    mode, completions = spec["completionMode"], spec["completions"].integer
    if mode.text not in (None, "Indexed", "NonIndexed"):
        yield mode.error(f"{shown(mode.text)} is not one of Indexed, NonIndexed", "write one of them")
    if mode.text != "Indexed":
        return
    parallelism = spec["parallelism"].integer
    parallelism = 1 if parallelism is None else parallelism
    if not spec["completions"].given:
        yield spec["completions"].error("is missing: an Indexed Job needs it", f"write 'completions: {parallelism}'")
    elif completions is not None and completions != parallelism and is_world(manifest):
        yield spec["parallelism"].error(
            f"{parallelism} of {completions} pods run at a time, so the world never comes together",
            f"write 'parallelism: {completions}', the same as completions",
        )


def told_workers(manifest: Manifest) -> Iterator[Problem]:
    """Only where hvdkit's own entry point says how many pods there should be."""
    parallelism = manifest.root["spec"]["parallelism"]
    for pod in pods(manifest):
        for container in pod.containers[:1]:
            yield from told_size(container, "--workers", parallelism.integer or 1, parallelism)


def job_name(manifest: Manifest) -> Iterator[Problem]:
    """A Job's name becomes a label of its pods, and with the index the host name of an Indexed Job's pod."""
    spec, field = manifest.root["spec"], manifest.root["metadata"]["name"]
    if not field.text:
        return
    completions = spec["completions"].integer
    if spec["completionMode"].text == "Indexed" and completions and completions > 0:
        last = f"{field.text}-{completions - 1}"
        reason = label_1123(last)
        if reason:
            sentence = f"the last pod would be called {shown(last, 90)}, which {reason}"
            yield field.error(sentence, f"use at most {63 - (len(last) - len(field.text))} characters")
    elif len(field.text) > 63:
        yield field.error(f"has {len(field.text)} characters; a Job's name may have 63", "shorten it")


def names_to_meet_by(manifest: Manifest) -> Iterator[Problem]:
    """Pods have DNS names only under a subdomain, which is a headless Service of that name."""
    spec = manifest.root["spec"]
    parallelism = spec["parallelism"].integer or 1
    if spec["completionMode"].text != "Indexed" or parallelism < 2 or not is_world(manifest):
        return
    for pod in pods(manifest):
        if not pod.spec["subdomain"].given:
            yield pod.spec["subdomain"].warning(
                f"not given: the {parallelism} pods of this world have no names to find each other by",
                "add a headless Service (clusterIP: None) and its name as subdomain",
            )


def job_shared_memory(manifest: Manifest) -> Iterator[Problem]:
    """As for every pod that trains."""
    for pod in pods(manifest):
        yield from shared_memory(pod)


def is_world(manifest: Manifest) -> bool:
    """Whether an object's pods look as if they trained together."""
    return any(trains_with_others(pod) for pod in pods(manifest))


def trains_with_others(pod: Pod) -> bool:
    for container in pod.containers:
        names = [variable["name"].text or "" for variable in container["env"]]
        if any(mark in word for word in [*words(container), *names] for mark in DISTRIBUTED):
            return True
    return False


def mesh(manifest: Manifest) -> Iterator[Problem]:
    """Unlike other names those of meshes may hold no '-'; and Monarch's operator 0.2 moved the pod one level down."""
    name = manifest.root["metadata"]["name"]
    if name.text and (not MESH_NAME.fullmatch(name.text) or len(name.text) > 63):
        sentence = f"{shown(name.text)} is no name of a mesh"
        yield name.error(sentence, "use small letters and digits only, a letter first, at most 63")
    template = manifest.root["spec"]["podTemplate"]
    if template["containers"].given:
        sentence = "a pod where the Monarch operator 0.2 expects a pod template"
        yield template["containers"].error(sentence, "move it all into podTemplate.spec (or use operator 0.1)")
    for pod in pods(manifest):
        yield from shared_memory(pod)


JOB_TRAPS = (restart_policy, indexed, told_workers, job_name, names_to_meet_by, job_shared_memory)
MESH_TRAPS = (mesh,)
