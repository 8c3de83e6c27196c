"""What is asked of Prometheus, in one place: dashboards and alerts show the same figures.

A selector is what stands between braces, as hvdkit_job="a"; a window is that of rate(). Figures of a job are grouped by
JOB, so that two jobs of one name in two namespaces stay apart.
"""

JOB = "namespace, hvdkit_job"


def series(metric: str, selector: str) -> str:
    """A metric, narrowed down."""
    return f"{metric}{{{selector}}}" if selector else metric


def per_second(metric: str, selector: str, window: str) -> str:
    """How fast a counter rises."""
    return f"rate({series(metric, selector)}[{window}])"


def step_seconds(selector: str, window: str) -> str:
    """Mean step of each rank."""
    total = per_second("hvdkit_step_seconds_sum", selector, window)
    return f"{total} / {per_second('hvdkit_step_seconds_count', selector, window)}"


def own_seconds(selector: str, window: str) -> str:
    """A step of each rank without its wait for the others: who is slow shows here, and not in the step.

    DDP cannot tell its wait, and then there is no answer.
    """
    total = per_second("hvdkit_step_seconds_sum", selector, window)
    wait = per_second("hvdkit_allreduce_wait_seconds_total", selector, window)
    return f"({total} - {wait}) / {per_second('hvdkit_step_seconds_count', selector, window)}"


def straggling_ratio(selector: str, window: str) -> str:
    """Own work of the slowest rank of each job, relative to the job's median rank."""
    own = own_seconds(selector, window)
    return f"max by ({JOB}) ({own}) / quantile by ({JOB}) (0.5, {own})"


def wait_ratio(kind: str, selector: str, window: str) -> str:
    """Share of its time that each rank waits; `kind` is data or allreduce."""
    wait = per_second(f"hvdkit_{kind}_wait_seconds_total", selector, window)
    return f"{wait} / {per_second('hvdkit_step_seconds_sum', selector, window)}"


def data_wait_ratio_of_job(selector: str, window: str) -> str:
    """The same of a whole job."""
    wait = per_second("hvdkit_data_wait_seconds_total", selector, window)
    total = per_second("hvdkit_step_seconds_sum", selector, window)
    return f"sum by ({JOB}) ({wait}) / sum by ({JOB}) ({total})"


def checkpoint_age_seconds(selector: str) -> str:
    """Since the newest checkpoint of each job."""
    return f"time() - max by ({JOB}) ({series('hvdkit_checkpoint_timestamp_seconds', selector)})"


def missing_ranks(selector: str) -> str:
    """Ranks of each job that Prometheus does not reach."""
    present = f"count by ({JOB}) ({series('hvdkit_info', selector)})"
    return f"max by ({JOB}) ({series('hvdkit_world_size', selector)}) - {present}"


def steps_of_job(selector: str, window: str) -> str:
    """Steps of all ranks of each job within the window."""
    return f"sum by ({JOB}) (increase({series('hvdkit_steps_total', selector)}[{window}]))"


def loss_not_finite(selector: str) -> str:
    """Losses that are no number or infinite, and no others."""
    loss = series("hvdkit_loss", selector)
    return f"{loss} != {loss} or abs({loss}) == Inf"


def restarts_within(selector: str, window: str) -> str:
    """Restarts of each job within the window: a restarted rank begins with a higher count."""
    restarts = f"{series('hvdkit_restarts_total', selector)}[{window}]"
    return f"max by ({JOB}) (max_over_time({restarts})) - min by ({JOB}) (min_over_time({restarts}))"


def of_gpus(metric: str, job: str) -> str:
    """A DCGM metric of the GPUs that pods of a job use.

    The exporter names the pod that uses a GPU in the label `pod`; where Prometheus keeps that label for the exporter's
    own pod (honor_labels: false), the user's is in `exported_pod`. Either way the answer has it in `pod`.
    """
    renamed = f'label_replace({metric}{{exported_pod=~"{job}-.*"}}, "pod", "$1", "exported_pod", "(.*)")'
    return f'{metric}{{exported_pod="", pod=~"{job}-.*"}} or {renamed}'
