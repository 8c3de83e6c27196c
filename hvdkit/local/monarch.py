"""A Monarch mesh on this machine: one process that starts all ranks, supervised like mpirun."""

import importlib.util
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs import LOCAL, local
from hvdkit.jobs.local import LocalPlan, Machine, Process
from hvdkit.jobs.spec import JobSpec
from hvdkit.local.supervisor import Outcome, RunOptions, Supervisor


def check_installed() -> None:
    """EnvironmentProblem without torchmonarch."""
    if importlib.util.find_spec("monarch") is None:
        raise EnvironmentProblem(
            "Monarch is not installed here; run `pip install 'hvdkit[monarch]'`, or for pods "
            "`hvdkit image build --monarch`."
        )


def plan_here(spec: JobSpec, machine: Machine) -> LocalPlan:
    """The mesh of a monarch job on this machine instead of its pods."""
    words = ("--mesh", "here", "--hosts", str(spec.workers), "--procs", str(spec.slots), "--local")
    # Gloo would listen where the machine's own name points to, which need not be an address it has.
    env = {"GLOO_SOCKET_IFNAME": "lo", **spec.env}
    return mesh_plan(replace(spec, backend=LOCAL, env=env), machine, words)


def mesh_plan(spec: JobSpec, machine: Machine, words: Sequence[str]) -> LocalPlan:
    """The process of `hvdkit.runtime.monarch_mesh` with these flags, and a local launch's variables but Horovod's."""
    ranks = local.render(replace(spec, controller="gloo"), machine)
    settings = tuple(one for one in ranks.settings if one.name in spec.env or not one.name.startswith("HOROVOD_"))
    program = machine.python if spec.command[0] == "python" else spec.command[0]
    argv = (machine.python, "-m", "hvdkit.runtime.monarch_mesh", *words, "--", program, *spec.command[1:])
    process = Process(argv=argv, env={setting.name: setting.value for setting in settings})
    return replace(ranks, processes=(process,), settings=settings, controller="monarch", hosts=())


def run(plan: LocalPlan, options: RunOptions) -> Outcome:
    """Run the mesh to its end. Whatever happens, no process that it started is left."""
    supervisor = MeshSupervisor(plan, options)
    try:
        supervisor.start()
        return supervisor.loop()
    finally:
        supervisor.end_everything()


class MeshSupervisor(Supervisor):
    """The supervisor of a local launch, with Monarch in mpirun's place."""

    def _blame(self, index: int, code: int) -> tuple[int, str]:
        code, reason = super()._blame(index, code)
        return code, reason.replace("mpirun", "Monarch")

    def _end(self, code: int, reason: str, *, rank: int | None = None, tail: list[str] | None = None) -> None:
        super()._end(code, reason, rank=rank, tail=tail)
        if code == 0:
            self.noise = deque(maxlen=0)  # Monarch talks about itself; after a success nobody needs it
