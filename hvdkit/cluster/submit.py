"""Sends a job: first all of it as a dry run on the server, then for real; and takes back what it cannot finish."""

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.job import Job, find_job, is_ours
from hvdkit.cluster.kinds import MAIN, ROLE_BINDING, SHARED, VOLUME, Object, kind_of, name_of
from hvdkit.errors import EnvironmentProblem, HvdkitError, InputError
from hvdkit.jobs.spec import JobSpec

SECONDS_TO_ASK_AGAIN = 30.0  # whether an object was made, when the answer was lost


def submit(cluster: Cluster, spec: JobSpec, objects: list[Object]) -> Job:
    """Create the objects in their order; everything made for the job then belongs to it and goes with it."""
    for made in objects:
        if kind_of(made) is not ROLE_BINDING:  # whether we may give what its Role has, is asked of a Role that exists
            _send(cluster, spec, made, dry_run=True)
    created: list[Object] = []
    main: Object | None = None
    try:
        for made in objects:
            answer = _send(cluster, spec, made, dry_run=False)
            if answer is None:
                continue
            created.append(answer)
            if kind_of(made) is MAIN[spec.backend]:
                main = answer
        assert main is not None  # every renderer makes one
        for one in created:
            if one is not main and kind_of(one) not in SHARED:
                cluster.patch(kind_of(one), name_of(one), {"metadata": {"ownerReferences": [_owner(main)]}})
    except BaseException:
        _take_back(cluster, created)
        raise
    return Job(main=main)


def _send(cluster: Cluster, spec: JobSpec, made: Object, *, dry_run: bool) -> Object | None:
    """Create one object; None for a shared one that is there already."""
    kind = kind_of(made)
    try:
        return {"apiVersion": kind.api_version, "kind": kind.kind, **cluster.create(made, dry_run=dry_run)}
    except ApiError as error:
        if not dry_run and error.passing and error.status != 429:
            return _made_all_the_same(cluster, spec, made, error)
        if error.reason != "AlreadyExists":
            raise _explained(cluster, made, error) from None
        if kind is VOLUME:
            _check_usable(cluster, name_of(made))
        if kind in SHARED:
            return None
    raise _taken(cluster, spec, made)


def _check_usable(cluster: Cluster, volume: str) -> None:
    """A volume whose claim was deleted takes no other one, also not of the same name: the pods would wait for ever."""
    try:
        there = cluster.get(VOLUME, volume)
    except ApiError as error:
        if error.status == 403:
            return  # we may create volumes, but not read them
        raise
    if there is not None and (there.get("status") or {}).get("phase") == "Released":
        raise EnvironmentProblem(
            f"--nfs: the PersistentVolume '{volume}' is still there, of a claim that was deleted, and takes no new "
            f"one; remove it with `kubectl delete pv {volume}` (the files on the server stay), and launch again."
        )


def _made_all_the_same(cluster: Cluster, spec: JobSpec, made: Object, error: ApiError) -> Object:
    """The object, where only the answer to its creation was lost; else the error."""
    kind, name = kind_of(made), name_of(made)
    unknown = f"{error} (Whether the {kind.kind} was made is not known; `hvdkit list` shows it if it was.)"
    if not name:  # the cluster was to finish it
        raise ApiError(unknown, status=error.status) from None
    try:
        there = cluster.get(kind, name, patience=SECONDS_TO_ASK_AGAIN)
    except ApiError:
        raise ApiError(unknown, status=error.status) from None
    if there is None or not _has_marks(there, made):
        raise error
    return {"apiVersion": kind.api_version, "kind": kind.kind, **there}


def _has_marks(there: Object, made: Object) -> bool:
    """Whether it bears our labels and annotations; that its name was free a moment ago, the dry run said."""
    parts = ("labels", "annotations")
    ours, found = ([one["metadata"].get(part) or {} for part in parts] for one in (made, there))
    return all(mine.items() <= theirs.items() for mine, theirs in zip(ours, found, strict=True))


def _taken(cluster: Cluster, spec: JobSpec, made: Object) -> HvdkitError:
    """The name is not free; who has it?"""
    where = f"in namespace {cluster.namespace} of context {cluster.context}"
    try:
        job = find_job(cluster, spec.name)
    except InputError:
        there = cluster.get(kind_of(made), name_of(made))
        if there is not None and is_ours(there):
            return InputError(
                f"name: a {made['kind']} of an earlier job '{spec.name}' is still {where}; "
                f"`hvdkit delete {spec.name}` removes it, or choose another --name."
            )
        return InputError(
            f"name: there is a {made['kind']} '{name_of(made)}' {where} that is not hvdkit's; choose another --name."
        )
    return InputError(
        f"name: there is a job '{job.name}' (backend {job.backend}) {where} already; choose another --name, follow it "
        f"with `hvdkit logs -f {job.name}`, or remove it with `hvdkit delete {job.name}`."
    )


def _explained(cluster: Cluster, made: Object, error: ApiError) -> HvdkitError:
    what = f"the {made['kind']} '{name_of(made) or made['metadata'].get('generateName')}'"
    if error.status == 422 or error.reason in ("Invalid", "BadRequest"):
        return InputError(f"{what} was refused; {error}")
    if error.status == 404:
        return EnvironmentProblem(f"{what} cannot be made: the cluster does not serve {made['apiVersion']}; {error}")
    return error


def _owner(main: Object) -> Object:
    return {
        "apiVersion": main["apiVersion"],
        "kind": main["kind"],
        "name": name_of(main),
        "uid": main["metadata"]["uid"],
    }


def _take_back(cluster: Cluster, created: list[Object]) -> None:
    """Half a job is worse than none; what cannot be deleted now, `hvdkit delete` will find by its label."""
    for one in reversed(created):
        if kind_of(one) in SHARED:
            continue
        try:
            cluster.delete(kind_of(one), name_of(one), uid=one["metadata"]["uid"], patience=2.0)
        except HvdkitError:
            return
