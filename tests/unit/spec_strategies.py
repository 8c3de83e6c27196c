"""Hypothesis strategies over JobSpecs, for the tests here and the long run of `make soak`.

`fields()` gives the keyword arguments of a JobSpec. Most of their values are good, so that many specs get as far as a
manifest; now and then one is wild, to see it refused.
"""

from typing import Any

from hypothesis import strategies as st

from hvdkit.jobs import CLUSTER_BACKENDS
from hvdkit.jobs.policy import Elastic, EnvSource, Metrics, Network, RunPolicy
from hvdkit.jobs.resources import Launcher, Resources
from hvdkit.jobs.scheduling import NodeRule, Scheduling, Toleration
from hvdkit.jobs.security import Security
from hvdkit.jobs.volumes import EmptyDir, HostPath, Nfs, Volume

# What YAML readers, shells and Kubernetes' own expansion like to take for something else.
NASTY = (
    "",
    " ",
    "'",
    '"',
    "\\",
    "\n",
    "a\nb\n",
    "\t",
    "\r\n",
    "---",
    "--",
    "- a",
    "a: b",
    "a #b",
    "#a",
    "&a",
    "*a",
    "!a",
    "%a",
    "@a",
    "`a`",
    "{a}",
    "[a]",
    "|",
    ">",
    "? a",
    "~",
    "<<",
    "=",
    "null",
    "Null",
    "true",
    "False",
    "yes",
    "No",
    "on",
    "OFF",
    "y",
    "N",
    "1",
    "-1",
    "1e3",
    "1E3",
    "0x1f",
    "0o17",
    "017",
    "0b11",
    "1_000",
    "12:30",
    "1.5",
    ".5",
    ".inf",
    "-.INF",
    ".NaN",
    "2001-01-01",
    "$",
    "$$",
    "$$$",
    "$(HOME)",
    "$$(HOME)",
    "$$$(HOME)",
    "$(",
    "$(A",
    "${HOME}",
    "$HOME",
    "grüße",
    "日本",
    "😀",
    "e\u0301",
    "\x07",
    "\x1b[0m",
    "\x7f",
    "\x85",
    "\xa0",
    "\u2028",
    "\ufeff",
    "a" * 500,
)

letters = st.text("abcxyz", min_size=1, max_size=8)
words = st.sampled_from(NASTY) | st.text(max_size=12)
names = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
label_values = st.sampled_from(["", "a", "A1", "1", "yes", "1e3", "x" * 63])
label_keys = st.sampled_from(["team", "example.com/team", "a.b.c/d_e.F"])
paths = st.sampled_from(["/data", "/mnt/a b", "/öffentlich", "/a/b/c", "/$(x)", "/1e3"])
amounts = st.sampled_from(["1", "500m", "2.5", "16Gi", "1e3", "100M", ".5"])
cpus = st.sampled_from(["1", "500m", "2.5", "1e2", ".5", "4Gi"])
memory = st.sampled_from(["16Gi", "1e9", "2000M", "2.5Gi", "500m"])
variables = st.from_regex(r"[A-Z_][A-Z0-9_]{0,6}", fullmatch=True) | st.sampled_from(
    ["HVDKIT_SSH_FOLDER", "HOROVOD_CYCLE_TIME", "PET_NODE_RANK", "PET_MASTER_PORT", "MONARCH_PORT", "POD_IP"]
)
ports = st.integers(1024, 65535)


def maybe(strategy: st.SearchStrategy, default: Any = None) -> st.SearchStrategy:
    """Mostly the default: a spec with everything set is rarely a good one."""
    return st.just(default) | st.just(default) | strategy


def tuples(strategy: st.SearchStrategy, max_size: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, max_size=max_size).map(tuple)


def parts(kind: type, **strategies: st.SearchStrategy) -> st.SearchStrategy:
    """A part of a spec, each field left at its default or drawn."""
    return st.fixed_dictionaries({}, optional=strategies).map(lambda given: kind(**given))


nfs = st.builds(
    Nfs,
    server=st.sampled_from(["10.0.0.5", "nfs.example.com", "fd00::1"]),
    path=paths,
    mount_options=st.sampled_from([(), ("hard",), ("nfsvers=4.2", "ro")]),
)
sources = st.one_of(
    st.fixed_dictionaries({"nfs": nfs}),
    st.fixed_dictionaries({"pvc": names}),
    st.fixed_dictionaries({"empty_dir": parts(EmptyDir, size=amounts, memory=st.booleans())}),
    st.fixed_dictionaries({"config_map": names}),
    st.fixed_dictionaries({"secret": names}),
    st.fixed_dictionaries({"host_path": st.builds(HostPath, path=paths)}),
)
volumes = st.tuples(sources, st.booleans(), maybe(st.just("sub/folder")), paths).map(
    lambda drawn: Volume(**drawn[0], read_only=drawn[1], sub_path=drawn[2], mount=drawn[3])
)
env_sources = st.one_of(
    st.builds(EnvSource, secret=names, key=st.just("token"), optional=st.booleans()),
    st.builds(EnvSource, config_map=names, key=st.just("a.b_c")),
    st.builds(EnvSource, field=st.sampled_from(["status.podIP", "metadata.labels['hvdkit.io/job']"])),
)
resources = parts(
    Resources,
    cpus=cpus,
    limit_cpus=st.booleans(),
    memory=memory,
    gpus=st.integers(0, 8),
    gpu_resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb", "gpu"]),
    extended=st.dictionaries(st.sampled_from(["rdma/hca", "example.com/nic"]), st.sampled_from(["1", "2"]), max_size=2),
)
scheduling = parts(
    Scheduling,
    node_selector=st.dictionaries(label_keys, label_values, max_size=2),
    affinity=tuples(
        st.one_of(
            st.builds(NodeRule, key=label_keys, values=st.just(("a", "b")), weight=maybe(st.integers(1, 100))),
            st.builds(NodeRule, key=label_keys, operator=st.just("Gt"), values=st.just(("5",))),
            st.builds(NodeRule, key=label_keys, operator=st.sampled_from(["Exists", "DoesNotExist"])),
        )
    ),
    tolerations=tuples(
        st.builds(
            Toleration,
            key=label_keys,
            value=maybe(label_values),
            effect=st.just("NoExecute"),
            seconds=maybe(st.integers(0, 9)),
        )
    ),
    placement=st.sampled_from(["any", "spread", "pack"]),
    priority_class=names,
    scheduler=maybe(names),
    gang=maybe(st.sampled_from(["volcano", "coscheduling"])),
    queue=names,
)
security = parts(
    Security,
    level=st.sampled_from(["restricted", "baseline", "privileged", "privileged"]),
    enforced=maybe(st.sampled_from(["restricted", "baseline", "privileged"])),
    user=st.sampled_from([1000, 1000, 0]),
    read_only_root=st.booleans(),
    capabilities=maybe(st.sampled_from([("NET_BIND_SERVICE",), ("CHOWN",), ("IPC_LOCK",)]), ()),
)
run = parts(
    RunPolicy,
    restart_policy=maybe(st.sampled_from(["Never", "OnFailure"])),
    backoff_limit=st.integers(0, 9),
    start_timeout=maybe(st.integers(1, 9999), 600),
    deadline=st.integers(1, 10**6),
    ttl=st.integers(0, 10**6),
    clean_pods=st.sampled_from(["Running", "All", "None"]),
    suspend=maybe(st.booleans(), False),
    grace=st.integers(1, 600),
)
network = parts(
    Network,
    interface=st.sampled_from(["eth0", "eth0,ib0"]),
    host_network=maybe(st.just(True), False),
    port=ports,
    policy=st.booleans(),
    service_mesh=st.booleans(),
)
metrics = st.builds(Metrics) | st.builds(Metrics, port=ports, pod_monitor=st.booleans())
elastic = st.builds(Elastic, min_workers=st.integers(1, 4), max_workers=st.integers(4, 9))

GOOD: dict[str, st.SearchStrategy] = {
    "namespace": names,
    "workers": st.integers(1, 12),
    "slots": st.integers(1, 4),
    "engine": maybe(st.sampled_from(["horovod", "ddp"])),
    "threads": st.integers(1, 64),
    "elastic": maybe(elastic),
    "independent": maybe(st.just(True), False),
    "generate_name": maybe(st.just(True), False),
    "launcher_image": st.just("registry.example.com/launcher@sha256:" + "0" * 64),
    "pull_policy": st.sampled_from(["Always", "IfNotPresent", "Never"]),
    "pull_secrets": tuples(names),
    "working_dir": paths,
    "env": st.dictionaries(variables, words, max_size=4),
    "env_from": st.dictionaries(variables, env_sources, max_size=3),
    "resources": resources,
    "shm": memory,
    "launcher": parts(Launcher, resources=resources, as_worker=maybe(st.just(True), False)),
    "volumes": tuples(volumes),
    "nfs_mode": st.sampled_from(["auto", "inline", "pv"]),
    "scheduling": scheduling,
    "run": run,
    "network": network,
    "security": security,
    "service_account": names,
    "metrics": metrics,
    "labels": st.dictionaries(label_keys, label_values, max_size=2),
    "annotations": st.dictionaries(label_keys, words, max_size=3),
    "provenance": st.dictionaries(st.sampled_from(["git-commit", "version"]), words, max_size=2),
    "mpi_args": maybe(tuples(words), ()),
    "timeline": st.just("/results/timeline.json"),
    "autotune": st.booleans(),
}
WILD = words | st.text("/.:-a0A_", max_size=70)
WILD_FIELDS: dict[str, st.SearchStrategy] = {
    "name": WILD,
    "command": tuples(WILD),
    "image": WILD,
    "namespace": WILD,
    "workers": st.integers(-3, 10**12),
    "slots": st.integers(-3, 10**12),
    "working_dir": WILD,
    "pull_secrets": tuples(WILD),
    "shm": WILD,
    "service_account": WILD,
    "env": st.dictionaries(WILD, WILD, max_size=2),
    "labels": st.dictionaries(WILD, WILD, max_size=2),
    "annotations": st.dictionaries(WILD, WILD, max_size=2),
    "provenance": st.dictionaries(WILD, WILD, max_size=2),
    "volumes": tuples(
        st.builds(Volume, mount=WILD, nfs=st.none() | st.builds(Nfs, server=WILD, path=WILD), pvc=st.none() | WILD)
    ),
    "resources": st.builds(
        Resources,
        cpus=WILD,
        memory=WILD,
        gpus=st.integers(-2, 10**12),
        gpu_resource=WILD,
        extended=st.dictionaries(WILD, WILD, max_size=2),
    ),
    "env_from": st.dictionaries(variables, st.builds(EnvSource, secret=WILD, key=WILD), max_size=1)
    | st.dictionaries(variables, st.builds(EnvSource, field=WILD), max_size=1),
    "scheduling": st.builds(Scheduling, queue=WILD)
    | st.builds(Scheduling, affinity=tuples(st.builds(NodeRule, key=WILD, values=tuples(WILD)))),
    "security": st.builds(Security, level=WILD, user=st.integers(-2, 10**12), capabilities=tuples(WILD)),
    "network": st.builds(Network, interface=WILD, port=st.integers(-1, 10**6)),
    "run": st.builds(RunPolicy, backoff_limit=st.integers(-2, 10**12), grace=st.integers(-2, 10**12)),
    "elastic": st.builds(Elastic, min_workers=st.integers(-2, 9), max_workers=st.integers(-2, 9)),
}


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """The keyword arguments of a JobSpec for a cluster."""
    given: dict[str, Any] = {
        "name": draw(names),
        "command": draw(st.tuples(letters).flatmap(lambda first: tuples(words, 4).map(lambda rest: first + rest))),
        "backend": draw(st.sampled_from(CLUSTER_BACKENDS)),
        "image": "registry.example.com/team/train:1.0",
    }
    chosen = draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=8, unique=True))
    given |= {name: draw(GOOD[name]) for name in chosen}
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(sorted(WILD_FIELDS)))
        given[name] = draw(WILD_FIELDS[name])
    return given
