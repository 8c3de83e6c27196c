"""Which of the objects that bear a job's name are really its own. Pure.

Names and labels are used again. After `hvdkit delete --no-wait` the pods of the job before are there for a while yet,
and so is the Job of its launcher, which may say "Complete": not a word about the new job. Uids tell them apart.
"""

from hvdkit.cluster.kinds import JOB, MESH, Object, uid_of
from hvdkit.jobs.live import created


def own(main: Object, others: list[Object]) -> list[Object]:
    """Those of the others that belong to the job `main`."""
    known = {uid_of(one): one for one in others if uid_of(one)}
    said = [(one, _said_by_owners(one, main, known)) for one in others]
    # A mesh is made before the controller that is the job, and its pods may be, too.
    meshes = [one for one, belongs in said if one.get("kind") == MESH.kind and belongs is not False]
    since = min(map(created, (main, *meshes)))
    return [one for one, belongs in said if (_by_age(one, since) if belongs is None else belongs)]


def _said_by_owners(one: Object, main: Object, known: dict[str, Object]) -> bool | None:
    """Whether the chain of its owners leads to the job; None where it breaks off before that is clear."""
    owners = (one.get("metadata") or {}).get("ownerReferences") or []
    if any(owner.get("uid") == uid_of(main) for owner in owners):
        return True
    for owner in owners:
        if owner.get("uid") in known:
            return _said_by_owners(known[owner["uid"]], main, known)
    return False if any(owner.get("kind") == main.get("kind") for owner in owners) else None


def _by_age(one: Object, since: str) -> bool:
    """The same where no owner says it."""
    if one.get("kind") == JOB.kind:
        return False  # mpi-operator marks the Job of its launcher; one without is somebody's who took the name
    if one.get("kind") == MESH.kind:
        return True  # not handed over to its job yet; an older one would have kept the job from being made
    # Times are whole seconds: what was made in the same one may well be ours.
    return not created(one) or created(one) >= since
