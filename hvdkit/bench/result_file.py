"""results.json: everything that a sweep measured, and what follows from it. results.schema.json describes it."""

import contextlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from hvdkit.bench.points import Point, SweepSettings
from hvdkit.bench.results import Results, Run
from hvdkit.bench.summary import summarise
from hvdkit.bench.verdict import diagnose
from hvdkit.errors import HvdkitError, InputError

VERSION = 1
KIND = "scaling"
FILE_NAME = "results.json"


def save(results: Results, path: Path) -> None:
    """Write the file by one rename: a kill leaves the old one or the new one."""
    head = {
        "version": VERSION,
        "kind": KIND,
        "created": results.created,
        "environment": results.environment,
        "flags": results.settings.as_json(),
        "summaries": [summary.as_json() for summary in summarise(results)],
        "verdict": diagnose(results).as_json(),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    runs = ",\n".join(json.dumps(run.as_json(), separators=(",", ":")) for run in results.runs)
    temporary = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w") as file:
            file.write("{\n" + ",\n".join(lines) + ',\n"runs": [\n' + runs + "\n]}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"--output: {path} cannot be written: {error.strerror}.") from None


def load(path: Path) -> Results:
    """Read a results.json; InputError, naming the file and the field, when it is not one."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); name the results.json of a sweep.") from None
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise InputError(f"{path} is not the result of `hvdkit bench scaling`.")
    if values.get("version") != VERSION:
        found = values.get("version")
        raise InputError(f"{path} has version {found} and this hvdkit reads {VERSION}; install the one that wrote it.")
    try:
        settings = SweepSettings.from_json(values["flags"])
        runs = [_run(run, settings.warmup_steps) for run in values["runs"]]
        name = path.resolve().parent.name if path.name == FILE_NAME else path.stem
        environment, created = _of_type(values, "environment", dict), _of_type(values, "created", str)
        _of_type(environment, "versions", dict)
        results = Results(settings=settings, environment=environment, created=created, runs=runs, name=name)
        summarise(results)  # what cannot be worked out is damaged
        diagnose(results)
    except KeyError as error:
        raise InputError(f"{path} is damaged: the field {error} is missing.") from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, HvdkitError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    return results


def _run(values: dict[str, Any], warmup: int) -> Run:
    fields = {name: value for name, value in values.items() if name not in ("point", "status")}
    for name, kind in (("repeat", int), ("began", int | float), ("seconds", int | float), ("load_before", int | float)):
        _of_type(fields, name, kind)
    run = Run(point=Point(**values["point"]), warmup=warmup, **fields)
    if run.problem is None:
        _of_type(fields, "versions", dict)
        _ = run.figures
    return run


def _of_type(values: dict[str, Any], name: str, kind: Any) -> Any:
    if not isinstance(values[name], kind):
        raise InputError(f"the field '{name}' cannot be {json.dumps(values[name])[:40]}.")
    return values[name]


def schema() -> dict[str, Any]:
    """The JSON Schema of results.json."""
    return json.loads(resources.files("hvdkit.bench").joinpath("results.schema.json").read_text())


def find(path: Path) -> Path:
    """The file that a user means: itself, or the results.json of a sweep's folder."""
    return path / FILE_NAME if path.is_dir() else path
