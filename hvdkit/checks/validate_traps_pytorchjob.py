"""Traps of PyTorchJobs (training-operator 1.9, kubeflow.org/v1). Its webhook refuses some of them, if it is there."""

from collections.abc import Iterator

from hvdkit.checks.validate_fields import Manifest, pods
from hvdkit.checks.validate_finding import Problem, counted, shown
from hvdkit.checks.validate_names import last_worker
from hvdkit.checks.validate_quantity import gpus
from hvdkit.checks.validate_schema import nearest
from hvdkit.checks.validate_traps_pods import shared_memory

CONTAINER = "pytorch"


def processes_per_node(manifest: Manifest) -> Iterator[Problem]:
    """`nProcPerNode`, as tutorials write it, is dropped in silence, and then a pod starts a process per CPU."""
    spec = manifest.root["spec"]
    elastic = spec["elasticPolicy"]["nProcPerNode"]
    misspelt = [key for key, _ in spec.entries() if key.lower() == "nprocpernode" and key != "nprocPerNode"]
    if misspelt:
        wrong = spec[misspelt[0]]
        sentence = "unknown field, dropped in silence; did you mean 'nprocPerNode'?"
        yield wrong.error(sentence, f'write nprocPerNode: "{wrong.value}" (a string)')
    elif elastic.given and spec["nprocPerNode"].given:
        yield elastic.error("cannot stand beside spec.nprocPerNode", "take it out; it is deprecated")
    elif not spec["nprocPerNode"].given and not elastic.given:
        sentence = "not given, so 'auto': without GPUs torchrun starts a process for every CPU of the node"
        yield spec["nprocPerNode"].warning(sentence, 'write nprocPerNode: "1", or the GPUs of a pod')


def replica_specs(manifest: Manifest) -> Iterator[Problem]:
    """What the operator's webhook refuses and the schema allows."""
    replicas = manifest.root["spec"]["pytorchReplicaSpecs"]
    for role, replica in replicas.entries():
        if role not in ("Master", "Worker"):
            hint = nearest(role, ["Master", "Worker"])
            yield replica.error(f"'{role}' is no role of a PyTorchJob", f"write {hint or 'Master or Worker'}")
        policy = replica["restartPolicy"]
        if policy.text not in (None, "Always", "OnFailure", "Never", "ExitCode"):
            sentence = f"{shown(policy.text)} is not one of Always, OnFailure, Never, ExitCode"
            yield policy.error(sentence, "write one of them")
        containers = replica["template"]["spec"]["containers"]
        if containers.value and all(container["name"].text != CONTAINER for container in containers):
            sentence = f"no container is called '{CONTAINER}', so the operator's webhook refuses the job"
            yield containers.error(sentence, f"call the container that trains '{CONTAINER}'")
    master, worker = replicas["Master"], replicas["Worker"]
    if master["replicas"].integer not in (None, 1):
        yield master["replicas"].error(f"must be 1, not {master['replicas'].value}", "put the others into Worker")
    if worker["replicas"].integer is not None and worker["replicas"].integer < 1:
        yield worker["replicas"].error("must be at least 1", "take Worker out for a job of the master alone")
    if manifest.root["spec"]["elasticPolicy"].given and not worker.given:
        yield worker.error("is missing", "elasticPolicy needs Worker replicas")


def pod_names(manifest: Manifest) -> Iterator[Problem]:
    """Each pod gets a Service of its own name, which must be a DNS-1035 label."""
    yield from last_worker(manifest, manifest.root["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"].integer or 1)


def devices(manifest: Manifest) -> Iterator[Problem]:
    """A process drives one GPU: more processes than GPUs share them, fewer leave some idle."""
    given = manifest.root["spec"]["nprocPerNode"]
    text = given.text or ""
    processes = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    for pod in pods(manifest):
        count = sum(gpus(container) for container in pod.containers)
        if processes and count and processes != count:
            started = f"{processes} process{'es' if processes > 1 else ''}"
            sentence = f"{started} but {counted(count, 'GPU')} in {pod.role}"
            yield given.warning(sentence, f'write nprocPerNode: "{count}", a process a GPU')
        yield from shared_memory(pod, processes or 1)


PYTORCHJOB_TRAPS = (processes_per_node, replica_specs, pod_names, devices)
