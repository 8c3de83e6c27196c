"""The job that a run of a point is on a cluster. Pure.

Horovod's and DDP's points run on the backend that was asked for. The ideal side is an Indexed Job whatever that is: as
many pods of the same size in the same places, whose ranks start their first step together and then work alone.
"""

import math
import re

from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.train_words import train_words
from hvdkit.config.settings import DEFAULT, Setting, merge

BACKENDS = ("mpijob", "indexed-job")
IDEAL_BACKEND = "indexed-job"
SECONDS_TO_END = 60  # that the job of a sweep which was killed gets beyond its time; then the cluster ends it
SECONDS_KEPT = 600  # after that the cluster removes it, if we do not

# What the sweep itself decides, point by point; to `hvdkit launch` a hvdkit.yaml may say other things.
_OWN = {"name", "command", "backend", "workers", "slots", "engine", "controller", "threads", "hosts"}
_OWN |= {"elastic", "independent", "generate_name", "timeline", "autotune"}
_KEPT_POLICY = ("run.grace", "run.start_timeout")
_OF_THE_LAUNCHER = {"launcher", "launcher_image", "mpi_args"}  # which the ideal side has not
# What says where a job is kept and not how fast it is.
_NOT_MEASURED = {"namespace", "labels", "annotations", "provenance", "pull_policy", "pull_secrets", "run"}


def job_settings(settings: list[Setting]) -> list[Setting]:
    """What of the user's settings counts for every job of a sweep."""
    return [
        setting
        for setting in settings
        if setting.path[0] not in _OWN and (setting.path[0] != "run" or setting.name in _KEPT_POLICY)
    ]


def measured(settings: list[Setting]) -> list[Setting]:
    """Those of them that a figure depends on."""
    return [setting for setting in job_settings(settings) if setting.path[0] not in _NOT_MEASURED]


def settings_of(
    settings: list[Setting], sweep: SweepSettings, point: Point, *, name: str, timeout: float
) -> list[Setting]:
    """All settings of one run's job, each with the flag or file that it came from; `settings` are the user's."""
    ideal = point.engine == IDEAL
    kept = [one for one in job_settings(settings) if not (ideal and one.path[0] in _OF_THE_LAUNCHER)]
    return merge(kept, _own_settings(sweep, point, name, timeout))


def job_name(prefix: str, sweep: SweepSettings, point: Point, repeat: int) -> str:
    """As people see it in `hvdkit list` and Grafana: prefix, engine, workers and round; the data where they differ."""
    data = re.sub(r"[^a-z0-9]+", "-", point.data.lower()).strip("-")[:12].strip("-")
    words = [prefix, point.engine, *([data] if len(sweep.data) > 1 and data else []), point.workers, repeat + 1]
    return "-".join(map(str, words))


def command_of(sweep: SweepSettings, point: Point) -> tuple[str, ...]:
    """What every rank runs."""
    if point.engine == IDEAL:
        program = ["hvdkit.bench.independent", "--count", str(point.ranks)]
    else:
        program = ["hvdkit.train", "--engine", point.engine]
    return ("python", "-m", *program, *train_words(sweep, point))


def _own_settings(sweep: SweepSettings, point: Point, name: str, timeout: float) -> list[Setting]:
    ideal = point.engine == IDEAL
    values = {
        "name": (name, "--name"),
        "backend": (IDEAL_BACKEND if ideal else sweep.backend, "--backend"),
        "workers": (point.workers, "--workers"),
        "slots": (point.slots, "--slots"),
        "threads": (sweep.threads, "--threads"),
        # torchrun's variables tell the independent ranks where to meet before their first step.
        "engine": ("ddp" if ideal else point.engine, DEFAULT if ideal else "--engines"),
        "command": (command_of(sweep, point), DEFAULT),
        "run.backoff_limit": (0, DEFAULT),  # a world that started twice was not measured once
        "run.deadline": (math.ceil(timeout) + SECONDS_TO_END, "--timeout"),
        "run.ttl": (SECONDS_KEPT, DEFAULT),
    }
    made = [
        Setting(path=tuple(path.split(".")), value=value, source=source) for path, (value, source) in values.items()
    ]
    for variable in sweep.env:
        key, _, value = variable.partition("=")
        made.append(Setting(path=("env", key), value=value, source="--env"))
    return made
