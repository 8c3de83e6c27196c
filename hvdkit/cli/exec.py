"""`hvdkit exec`: run a command in a pod of a job."""

import click

from hvdkit.cli.target import on_cluster, place_flags
from hvdkit.errors import EnvironmentProblem, InputError

EXAMPLES = """\b
Examples:
  hvdkit exec train-x7b4k --worker 1 -- nvidia-smi
  hvdkit exec train-x7b4k -- bash                    a shell in worker 0
  hvdkit exec train-x7b4k --launcher -- ps aux
"""


@click.command(epilog=EXAMPLES)
@click.argument("job")
@click.option("--worker", type=click.IntRange(min=0), default=0, show_default=True, help="In this worker's pod.")
@click.option("--launcher", is_flag=True, help="In the launcher's pod.")
@click.argument("command_line", nargs=-1, required=True, metavar="-- COMMAND …")
@place_flags
def command(
    job: str,
    worker: int,
    launcher: bool,
    command_line: tuple[str, ...],
    context: str | None,
    namespace: str | None,
) -> int:
    """Run a COMMAND in the pod of a worker of JOB; its exit code is the command's."""
    found = on_cluster(job, context, namespace, "exec")

    from hvdkit.cluster.execute import execute
    from hvdkit.cluster.job import gather
    from hvdkit.cluster.logs import pod_of_worker
    from hvdkit.jobs.live import created, is_launcher, phase_of, pods_of

    pods = pods_of(gather(found.cluster, found.job))
    if launcher:
        launchers = sorted((pod for pod in pods if is_launcher(pod)), key=created)
        if not launchers:
            raise InputError(f"--launcher: the job '{job}' has no launcher now; workers have --worker N.")
        pod = launchers[-1]
    else:
        pod = pod_of_worker(found.job, pods, worker)
    name = pod["metadata"]["name"]
    if phase_of(pod) != "Running":
        raise EnvironmentProblem(f"pod {name} is {phase_of(pod)}, not Running; 'hvdkit status {job}' shows the pods.")
    return execute(found.cluster, name, list(command_line), stdin=True)
