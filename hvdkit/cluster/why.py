"""Why a job failed, or does not start: cause, evidence, what to do. Pure: facts in, one answer out.

Each rule looks for one kind of trouble. They stand in the order in which causes come before their effects: a launcher
that gave up waiting for a worker says less than the worker's image that cannot be pulled.
"""

from collections.abc import Callable
from dataclasses import replace

from hvdkit.cluster import why_ends as ends
from hvdkit.cluster import why_pods as pods
from hvdkit.cluster.why_facts import Answer, Facts
from hvdkit.cluster.why_gone import explain_gone
from hvdkit.jobs.live import GONE
from hvdkit.jobs.state import RUNNING, SUCCEEDED

RULES: tuple[Callable[[Facts], Answer | None], ...] = (
    ends.out_of_memory,
    pods.image,
    pods.configuration,
    pods.mount,
    pods.refused,
    pods.scheduling,
    ends.deadline,
    pods.taken_away,
    ends.rank_failed,
    ends.stopped_in_order,
    pods.probes,
    ends.suspended,
    ends.no_controller,
    pods.mount_of_gone_pods,
    pods.scheduling_of_gone_pods,
)


def explain(facts: Facts) -> Answer:
    """The answer of the first rule that has one, or else what the state alone says."""
    if facts.state.phase == SUCCEEDED:
        return Answer(cause=f"nothing is wrong: the job '{facts.name}' succeeded.")
    found = next((answer for answer in (rule(facts) for rule in RULES) if answer is not None), None)
    if facts.state.reason == GONE:
        return explain_gone(facts, found)
    if facts.state.phase == RUNNING:
        now = ends.otherwise(facts)
        return replace(now, evidence=[f"before: {found.cause}", *found.evidence]) if found else now
    return found or ends.otherwise(facts)
