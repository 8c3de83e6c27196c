"""Starts real ranks that carry out the checks, and collects what each rank says of each check.

One launch for all files of a world size, because importing torch takes longer than the checks. After a
crash or a hang the checks not yet begun get a launch of their own: one lost check hides no other.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES = sorted((HERE / "checks").glob("*.py"))
SECONDS_A_LAUNCH_MAY_TAKE = 600  # the harness ends a check that hangs long before


@dataclass(frozen=True)
class Item:
    """One check to carry out: with allreduce as it is (`real`), also `unfused`, or with it as the `identity`."""

    phase: str
    file: Path
    check: str


@dataclass(frozen=True)
class Outcome:
    """What became of a check on one rank: passed, failed, or lost with its process."""

    outcome: str
    kind: str = ""
    error: str = ""


Outcomes = dict[Item, list[Outcome]]


def checks_of(file: Path) -> list[str]:
    """The names of the checks, read without importing torch."""
    functions = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]


def world_size_of(file: Path) -> int:
    """Two, unless the file says `WORLD_SIZE = …`."""
    return _constant(file, "WORLD_SIZE", 2)


def unfused_of(file: Path) -> list[str]:
    """The checks that must hold without fusion too: those that the file lists in `ALSO_UNFUSED`."""
    return list(_constant(file, "ALSO_UNFUSED", ()))


def _constant(file: Path, name: str, default: Any) -> Any:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    return default


def run_ranks(
    script: Path, *arguments: str, world_size: int, controller: str, env: dict[str, str], flags: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a Python script on that many ranks, to its end."""
    launch = ["launch", "--backend", "local", "--workers", str(world_size), "--controller", controller, *flags]
    return subprocess.run(
        [sys.executable, "-m", "hvdkit", *launch, "--", sys.executable, str(script), *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_A_LAUNCH_MAY_TAKE,
        check=False,
    )


def carry_out(
    work: list[Item],
    world_size: int,
    controller: str,
    folder: Path,
    env: dict[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Outcomes:
    """The outcome of each item on each rank."""
    found: Outcomes = {}
    attempt = 0
    while work:
        attempt += 1
        results = folder / f"launch-{attempt}"
        results.mkdir(parents=True)
        lines = [[item.phase, str(item.file), item.check] for item in work]
        (results / "work.json").write_text(json.dumps(lines))
        launch = run_ranks(
            HERE / "harness.py", str(results), world_size=world_size, controller=controller, env=env or {}, flags=flags
        )
        by_rank = [_read(results / f"rank-{rank}.jsonl") for rank in range(world_size)]
        assert all(by_rank), f"not every rank began (exit code {launch.returncode}):\n{launch.stdout}"

        done = [item for item in work if all(item in finished for finished in by_rank)]
        found |= {item: [finished[item] for finished in by_rank] for item in done}
        rest = work[len(done) :]
        if not rest:
            assert launch.returncode == 0, f"after the last check, exit code {launch.returncode}:\n{launch.stdout}"
            break
        lost = Outcome("lost", error=f"exit code {launch.returncode}\n{launch.stdout[-8000:]}")
        found[rest[0]] = [finished.get(rest[0], lost) for finished in by_rank]
        work = rest[1:]
    return found


def _read(path: Path) -> dict[Item | None, Outcome]:
    """What a rank has recorded; the key None says that it began at all."""
    finished: dict[Item | None, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        phase, file, check = entry.pop("item")
        key = None if entry["outcome"] == "started" else Item(phase, Path(file), check)
        finished[key] = Outcome(**entry)
    return finished


def report(outcomes: list[Outcome]) -> str:
    """What went wrong, rank by rank."""
    return "\n".join(
        f"rank {rank} {each.outcome}: {each.error}" for rank, each in enumerate(outcomes) if each.outcome != "passed"
    )
