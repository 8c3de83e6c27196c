"""Damages real checkpoints at random: none may be loaded silently, and the one before must be taken.

    python tests/soak/checkpoint_corruption.py [--cases 1000] [--seed 1] [--output FILE.json]

Also counted: what plain torch.load would have done with the same file. The exit code is 1 when a case failed.
"""

import argparse
import collections
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from machine_facts import machine_facts  # noqa: E402

from hvdkit.errors import InputError  # noqa: E402
from hvdkit.train.checkpoints import CheckpointFolder, load  # noqa: E402

PAGE = 4096


def flip_byte(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= chance.randrange(1, 256)


def flip_bit(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def truncate(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(1, len(content)) :]


def zero_page(content: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(0, len(content), PAGE)
    end = min(begin + PAGE, len(content))
    content[begin:end] = bytes(end - begin)


def swap_pages(content: bytearray, chance: random.Random) -> None:
    one, other = (PAGE * number for number in chance.sample(range(len(content) // PAGE), 2))
    first, second = content[one : one + PAGE], content[other : other + PAGE]
    content[one : one + PAGE], content[other : other + PAGE] = second, first


def append_bytes(content: bytearray, chance: random.Random) -> None:
    content += chance.randbytes(chance.randrange(1, 2 * PAGE))


def empty(content: bytearray, chance: random.Random) -> None:
    content.clear()


KINDS: list[Callable[[bytearray, random.Random], None]] = [
    *(flip_byte, flip_bit, truncate, zero_page, swap_pages, append_bytes, empty),
]


def training_state(step: int) -> dict:
    """Weights, momentum and random state of a small convnet after a step."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.Flatten(), torch.nn.Linear(16 * 12 * 12, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 1, 14, 14)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return left == right


def failures_of(folder: CheckpointFolder, newest: Path, before: dict) -> list[str]:
    """What hvdkit did wrong with a folder whose newest checkpoint is damaged."""
    wrong = []
    said: list[str] = []
    try:
        taken = folder.newest_whole(said.append)
        if taken is None or taken.step != 1 or not same(taken.state, before):
            wrong.append("newest_whole did not take the checkpoint before")
    except InputError as error:
        wrong.append(f"newest_whole found none whole: {error}")
    if len(said) != 1 or str(newest) not in said[0]:
        wrong.append(f"the damage was reported as {said}")
    try:
        load(newest)
        wrong.append("load took the damaged file")
    except InputError:
        pass
    return wrong


def torch_alone(newest: Path, intact: dict) -> str:
    """What plain torch.load does with it."""
    try:
        content = torch.load(newest, weights_only=True)
    except Exception:
        return "refused"
    return "loaded right values" if same(content, intact) else "loaded wrong values"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    counts = {kind.__name__: collections.Counter() for kind in KINDS}
    failed: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="hvdkit-soak-") as temporary:
        folder = CheckpointFolder(Path(temporary))
        folder.prepare()
        before = load(folder.save(1, training_state(1))).state
        newest = folder.save(2, training_state(2))
        content = newest.read_bytes()
        intact = torch.load(newest, weights_only=True)
        for number in range(arguments.cases):
            kind = KINDS[number % len(KINDS)]
            damaged = bytearray(content)
            while damaged == content:  # a page may be zero already, two pages may be equal
                kind(damaged, chance)
            newest.write_bytes(damaged)
            wrong = failures_of(folder, newest, before)
            failed += [{"case": number, "kind": kind.__name__, "what": what} for what in wrong]
            counts[kind.__name__]["cases"] += 1
            counts[kind.__name__]["never loaded, the one before taken"] += not wrong
            counts[kind.__name__]["torch.load alone: " + torch_alone(newest, intact)] += 1
        newest.write_bytes(content)
        if folder.newest_whole(print).step != 2:
            failed.append({"what": "the intact file was not loaded in the end"})
    for kind, count in counts.items():
        print(f"{kind:<13}", ", ".join(f"{what} {times}" for what, times in sorted(count.items())))
    print(f"{arguments.cases} cases, seed {arguments.seed}, {len(content):,} bytes each: {len(failed)} failures")
    for failure in failed[:20]:
        print(failure)
    if arguments.output:
        result = {
            "version": 1,
            "check": "checkpoint_corruption",
            "machine": machine_facts(),
            "seed": arguments.seed,
            "cases": arguments.cases,
            "file_bytes": len(content),
            "failures": failed,
            "kinds": {kind: dict(sorted(count.items())) for kind, count in counts.items()},
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
