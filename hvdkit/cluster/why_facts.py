"""The facts from which `why` draws its answer, and how to read them. Pure."""

from dataclasses import dataclass, field

from hvdkit.cluster.kinds import Object, name_of
from hvdkit.jobs.live import left_in, pods_of
from hvdkit.jobs.state import JobState

TAIL_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is known of a job."""

    name: str
    backend: str
    namespace: str
    state: JobState
    objects: list[Object]
    """The job's own object, its pods, and what a controller made."""

    events: list[Object] = field(default_factory=list)
    """Kubernetes' events about them, oldest first; the API keeps them for an hour."""

    logs: dict[str, list[str]] = field(default_factory=dict)
    """The last lines of pods, by their name."""

    never_fits: str = ""
    """Why its pods can never fit on the nodes that there are, if we may see them."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Why."""

    cause: str
    """One sentence."""

    evidence: list[str] = field(default_factory=list)
    """What says so: pods, events, conditions, the last lines of a rank."""

    what_to_do: str = ""

    trouble: str = ""
    """One word for it, for programs: out-of-memory, image, scheduling, mount, quota, rank …; empty when all is well."""


@dataclass(frozen=True)
class End:
    """How a container ended."""

    pod: Object
    terminated: Object
    left: Object
    """The termination message of hvdkit's pod programs; empty where there is none."""

    @property
    def code(self) -> int:
        return self.terminated.get("exitCode") or 0

    @property
    def memory(self) -> bool:
        return self.terminated.get("reason") == "OOMKilled" or bool(self.left.get("out_of_memory"))


def main_of(facts: Facts) -> Object:
    """The job's own object; empty where it is gone."""
    return next((one for one in facts.objects if name_of(one) == facts.name and one.get("kind") != "Pod"), {})


def ends_of(facts: Facts) -> list[End]:
    """How containers ended, now or before they were started again, the first end first."""
    found: list[End] = []
    for pod in pods_of(facts.objects):
        status = pod.get("status") or {}
        for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            for moment in ("lastState", "state"):
                ended = (container.get(moment) or {}).get("terminated")
                if ended:
                    found.append(End(pod, ended, left_in(ended.get("message") or "")))
    return sorted(found, key=lambda end: end.terminated.get("finishedAt") or "")


def plain_message(end: End) -> list[str]:
    """What a pod without hvdkit's termination message left: the end of its log."""
    message = end.terminated.get("message") or ""
    return [] if end.left else message.splitlines()


def end_text(end: End) -> str:
    """How a container ended, in a few words."""
    signal = f", signal {end.terminated['signal']}" if end.terminated.get("signal") else ""
    when = f" at {end.terminated['finishedAt']}" if end.terminated.get("finishedAt") else ""
    word = end.terminated.get("reason") or "ended"
    return f"{word}, exit code {end.code}{signal}{when}"


def memory_limit(facts: Facts, pod_name: str) -> str | None:
    """How much memory a pod may use."""
    for pod in pods_of(facts.objects):
        if name_of(pod) == pod_name:
            for container in (pod.get("spec") or {}).get("containers") or []:
                return ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None


def waiting_containers(facts: Facts) -> list[tuple[Object, Object]]:
    """Pods with a container that waits, and what it says it waits for."""
    found = []
    for pod in pods_of(facts.objects):
        status = pod.get("status") or {}
        for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                found.append((pod, waiting))
    return found


def has_run(pod: Object) -> bool:
    """Whether a container of the pod has ever run."""
    status = pod.get("status") or {}
    return any(
        "running" in (one.get("state") or {}) or "terminated" in (one.get("state") or {}) or one.get("lastState")
        for one in status.get("containerStatuses") or []
    )


def scheduled_condition(pod: Object) -> Object | None:
    """Whether a node was found; None while nobody has looked for one."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == "PodScheduled"), None)


def status_conditions(facts: Facts) -> list[str]:
    """The true conditions of the job and of a controller's Job that say that something went wrong."""
    found = []
    for one in facts.objects:
        for condition in (one.get("status") or {}).get("conditions") or []:
            if one.get("kind") == "Pod" or condition.get("status") != "True":
                continue
            if condition.get("type") in ("Failed", "FailureTarget", "Suspended"):
                said = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
                found.append(f"{one.get('kind')} {name_of(one)}: {condition['type']}: {said}")
    return found


def events_of(facts: Facts, pod: Object, *reasons: str, containing: str = "") -> list[Object]:
    """The events of a pod with one of these reasons."""
    return [
        one
        for one in facts.events
        if about(one) == name_of(pod) and reason_of(one) in reasons and containing in said_in(one)
    ]


def about(event: Object) -> str:
    """The name of the object that an event is about."""
    return (event.get("involvedObject") or {}).get("name") or ""


def reason_of(event: Object) -> str:
    """The one word of an event."""
    return event.get("reason") or ""


def said_in(event: Object) -> str:
    """The message of an event."""
    return event.get("message") or ""


def event_lines(events: list[Object], most: int = 3) -> list[str]:
    """The last events as text, one of each kind."""
    lines = {}
    for event in events:
        kind = (event.get("involvedObject") or {}).get("kind") or ""
        text = f"event of {kind} {about(event)}: {reason_of(event)}: {short(said_in(event), 400)}"
        lines[text] = event.get("count") or (event.get("series") or {}).get("count") or 1
    return [text + (f" ({count} times)" if count > 1 else "") for text, count in lines.items()][-most:]


def tail_lines(lines: list[str] | None) -> list[str]:
    """The last lines of a log, set off."""
    return [f"  {line}" for line in (lines or [])[-TAIL_LINES:]]


def short(text: str, most: int = 240) -> str:
    """A message in one line, without its last full stop."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= most else text[: most - 1] + "…"
