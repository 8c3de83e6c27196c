"""Traps of MPIJobs (mpi-operator 0.8, kubeflow.org/v2beta1).

The operator has no webhook: what it refuses is accepted by the API server first, and then no pod ever appears.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from hvdkit.checks.validate_fields import Field, Manifest, Pod, pods, words
from hvdkit.checks.validate_finding import Problem, counted, shown
from hvdkit.checks.validate_names import last_worker
from hvdkit.checks.validate_quantity import gpus
from hvdkit.checks.validate_schema import nearest
from hvdkit.checks.validate_traps_pods import shared_memory, told_size

API_VERSION = "kubeflow.org/v2beta1"
LAUNCHERS = {"mpirun", "mpiexec", "orterun", "horovodrun"}
RANK_FLAGS = {"-np", "-n", "--np", "--n", "-c", "--num-proc"}
# With these the operator's hostfile is not what counts.
OWN_HOSTS = {"-H", "-host", "--host", "--hosts", "-hostfile", "--hostfile", "-machinefile", "--machinefile"}
PROGRAM = re.compile(r"python[0-9.]*|bash|sh|env|hvdkit")
LOOK_UPS = ("getent", "nslookup", "dig")

MOVED = {
    "cleanPodPolicy": "spec.runPolicy.cleanPodPolicy",
    "backoffLimit": "spec.runPolicy.backoffLimit",
    "activeDeadlineSeconds": "spec.runPolicy.activeDeadlineSeconds",
    "ttlSecondsAfterFinished": "spec.runPolicy.ttlSecondsAfterFinished",
    "mpiDistribution": "spec.mpiImplementation",
    "gpus": "spec.mpiReplicaSpecs.Worker.replicas, and limits in its template",
    "gpusPerNode": "spec.slotsPerWorker",
    "processingUnits": "spec.mpiReplicaSpecs.Worker.replicas, and limits in its template",
    "processingUnitsPerNode": "spec.slotsPerWorker",
    "processingResourceType": "limits in the template of Worker",
    "replicas": "spec.mpiReplicaSpecs.Worker.replicas",
    "template": "spec.mpiReplicaSpecs.Launcher.template and .Worker.template",
    "launcherOnMaster": "nodeSelector in the template of Launcher",
    "mainContainer": "nothing: the first container is the main one",
}


def old_api(manifest: Manifest) -> Iterator[Problem]:
    """Most examples that people copy are of the operator before v2: today's one does not look at them at all.

    v2 starts ranks through SSH instead of `kubectl exec`, so that the image needs an SSH server, too.
    """
    if manifest.api_version == API_VERSION:
        return
    moves = [f"{key} becomes {target}" for key, target in MOVED.items() if manifest.root["spec"][key].given]
    changes = "; ".join([f"write {API_VERSION}", *moves, "workers need an SSH server in their image"])
    sentence = f"an MPIJob of {manifest.api_version}: mpi-operator 0.8 knows v2beta1 only"
    yield manifest.root["apiVersion"].error(sentence, changes)


def replica_specs(manifest: Manifest) -> Iterator[Problem]:
    """The schema takes any name, number and policy here; the operator takes few, and otherwise does nothing."""
    replicas = manifest.root["spec"]["mpiReplicaSpecs"]
    for role, replica in replicas.entries():
        if role not in ("Launcher", "Worker"):
            hint = nearest(role, ["Launcher", "Worker"])
            way_out = f"write {hint}" if hint else "write Launcher or Worker"
            yield replica.error(f"'{role}' is no role of an MPIJob", way_out)
        elif replica["restartPolicy"].text not in (None, "Never", "OnFailure"):
            sentence = f"{shown(replica['restartPolicy'].text)} is refused by the operator, and no pod appears"
            yield replica["restartPolicy"].error(sentence, "write Never or OnFailure")
        if isinstance(replica.value, dict) and not replica["template"]["spec"]["containers"].given:
            yield replica["template"].error("has no containers", f"give {role} a pod template with a container")
    launcher, worker = replicas["Launcher"], replicas["Worker"]
    if isinstance(replicas.value, dict) and not launcher.given:
        yield launcher.error("is missing", "an MPIJob needs a Launcher: the pod that runs mpirun")
    if launcher["replicas"].integer not in (None, 1):
        yield launcher["replicas"].error(f"must be 1, not {launcher['replicas'].value}", "an MPIJob has one launcher")
    if isinstance(worker.value, dict) and (worker["replicas"].integer or 0) < 1:
        sentence = "must be at least 1: the operator's default is 0, which it refuses"
        yield worker["replicas"].error(sentence, "write the number of workers")


def policies(manifest: Manifest) -> Iterator[Problem]:
    """Plain strings in the schema. The operator refuses an unknown cleanPodPolicy, but not a creation policy."""
    spec = manifest.root["spec"]
    allowed = {"None", "Running", "All"}
    policy = spec["runPolicy"]["cleanPodPolicy"]
    if policy.text is not None and policy.text not in allowed:
        yield policy.error(f"{shown(policy.text)} is not one of None, Running, All", "write Running")
    elif policy.text in (None, "None"):
        given = "None" if policy.text else "not given, so None"
        yield policy.warning(
            f"cleanPodPolicy is {given}: at the end the workers keep running and hold their CPUs and GPUs",
            "write 'runPolicy: {cleanPodPolicy: Running}'",
        )
    policy = spec["launcherCreationPolicy"]
    if policy.text not in (None, "AtStartup", "WaitForWorkersReady"):
        sentence = f"{shown(policy.text)} is no such policy; the operator takes it for WaitForWorkersReady"
        yield policy.warning(sentence, "write AtStartup or WaitForWorkersReady")


def pod_names(manifest: Manifest) -> Iterator[Problem]:
    """The last worker's name is also its DNS name: the operator refuses the job when that is no DNS-1035 label."""
    yield from last_worker(manifest, manifest.root["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"].integer or 1)


def ranks(manifest: Manifest) -> Iterator[Problem]:
    """mpirun's -np must fit the hostfile that the operator writes: workers x slots."""
    spec = manifest.root["spec"]
    slots = spec["slotsPerWorker"].integer
    slots = 1 if slots is None else slots
    workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"].integer
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    yield from told_size(launcher, "--workers", workers, spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    yield from told_size(launcher, "--slots", slots, spec["slotsPerWorker"])
    asked = asked_ranks(words(launcher))
    if asked is None or not workers or slots < 1:
        return
    hosts = workers + (1 if spec["runLauncherAsWorker"].value is True else 0)
    available = hosts * slots
    sum_of_it = f"{counted(hosts, 'worker')} x {counted(slots, 'slot')} = {available}"
    field = launcher["args"] if launcher["args"].given else launcher["command"]
    if asked > available:
        sentence = f"{asked} ranks asked for, but {sum_of_it}: mpirun stops with 'not enough slots'"
        yield field.error(sentence, "make -np, replicas and slotsPerWorker agree")
    elif asked < available:
        sentence = f"{asked} ranks asked for, but {sum_of_it}: the rest is held and does nothing"
        yield field.warning(sentence, "make -np, replicas and slotsPerWorker agree")


def asked_ranks(command: list[str]) -> int | None:
    """The number of ranks on mpirun's or horovodrun's command line; None when it names none, or a variable."""
    start = next((place for place, word in enumerate(command) if word.rpartition("/")[2] in LAUNCHERS), None)
    if start is None:
        return None
    number = None
    for word, following in pairwise([*command[start + 1 :], ""]):
        flag, _, value = word.partition("=")
        if PROGRAM.fullmatch(word.rpartition("/")[2]):
            break  # from here on the words are the program's own
        if flag in OWN_HOSTS or "oversubscribe" in word.lower():
            return None
        if flag in RANK_FLAGS and number is None:
            number = value or following
    return int(number) if number and number.isascii() and number.isdigit() and len(number) < 10 else None


def first_container(manifest: Manifest) -> Iterator[Problem]:
    """The operator gives hostfile, keys and environment to the first container only."""
    for pod in pods(manifest):
        for container in pod.containers[1:] if pod.role == "Launcher" else ():
            if LAUNCHERS & {word.rpartition("/")[2] for word in words(container)}:
                sentence = "starts MPI, but only the first container gets the hostfile and the SSH keys"
                yield container.error(sentence, "move it to the first place in containers")


def dns_race(manifest: Manifest) -> Iterator[Problem]:
    """The launcher starts before the workers' names are in DNS, fails, and is restarted without a word.

    Seen in 6 of 8 runs with the defaults. The entry point of Intel MPI's and MPICH's images waits by itself.
    """
    spec = manifest.root["spec"]
    launcher = pod_of(manifest, "Launcher")
    policy = spec["launcherCreationPolicy"].text
    if launcher is None or spec["mpiImplementation"].text in ("Intel", "MPICH"):
        return
    if policy not in (None, "AtStartup"):
        worker = pod_of(manifest, "Worker")
        if worker and worker.containers and not worker.containers[0]["readinessProbe"].given:
            probe = worker.containers[0]["readinessProbe"]
            sentence = "WaitForWorkersReady without a readiness probe: 'ready' then says nothing of the SSH server"
            yield probe.warning(sentence, "probe the SSH port: 'tcpSocket: {port: 2222}'")
        return
    if not any(waits(container) for container in launcher.all_containers):
        yield launcher.spec.warning(
            "the launcher does not wait for the workers: its first attempt mostly fails, before their names are in DNS",
            "set 'launcherCreationPolicy: WaitForWorkersReady' and a readiness probe on the workers' SSH port",
        )


def waits(container: Field) -> bool:
    """Whether a container looks up names before it goes on, or is hvdkit's launcher, which does."""
    return any(word.startswith("hvdkit") or word.rpartition("/")[2] in LOOK_UPS for word in words(container))


def keys_of_another_user(manifest: Manifest) -> Iterator[Problem]:
    """The keys are mounted in root's home by default, where another user's ssh does not look."""
    path = manifest.root["spec"]["sshAuthMountPath"]
    for pod in pods(manifest):
        for context in (pod.spec["securityContext"], *(each["securityContext"] for each in pod.containers[:1])):
            user = context["runAsUser"].integer
            if (user or context["runAsNonRoot"].value is True) and path.text in (None, "/root/.ssh"):
                who = f"uid {user}" if user else "another user than root"
                sentence = f"the SSH keys are put into /root/.ssh, but {pod.role} runs as {who}"
                yield path.warning(sentence, "set sshAuthMountPath to .ssh in that user's home")
                return


def devices(manifest: Manifest) -> Iterator[Problem]:
    """A rank drives one GPU: more slots than GPUs share them, fewer leave some idle. The launcher needs none."""
    spec = manifest.root["spec"]
    slots = spec["slotsPerWorker"].integer or 1
    for pod in pods(manifest):
        count = sum(gpus(container) for container in pod.containers)
        if pod.role == "Worker" and count and count != slots:
            sentence = f"{counted(slots, 'slot')} but {counted(count, 'GPU')} in a worker"
            yield spec["slotsPerWorker"].warning(sentence, f"write 'slotsPerWorker: {count}', one rank a GPU")
        if pod.role == "Launcher" and count and spec["runLauncherAsWorker"].value is not True:
            sentence = "the launcher holds GPUs that no rank uses"
            yield pod.spec["containers"].warning(sentence, "take them out, or set 'runLauncherAsWorker: true'")
        if pod.role == "Worker":
            yield from shared_memory(pod, slots)


def pod_of(manifest: Manifest, role: str) -> Pod | None:
    return next((pod for pod in pods(manifest) if pod.role == role), None)


MPIJOB_TRAPS = (
    replica_specs,
    policies,
    pod_names,
    ranks,
    first_container,
    dns_race,
    keys_of_another_user,
    devices,
)
