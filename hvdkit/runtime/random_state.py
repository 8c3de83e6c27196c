"""Where every random number generator of a rank stands, so that a resumed run draws the same numbers."""

import random
import sys
from typing import Any

import torch


def capture(device: torch.device) -> dict[str, Any]:
    """The state of Python's, NumPy's (if it is in use) and torch's generators, as plain values and tensors."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "torch": torch.get_rng_state(),
    }
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators where `capture` found them."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_rank(seed: int, rank: int) -> None:
    """Start the generators of a rank; ranks draw different numbers, for dropout and the like."""
    own = (seed * 1_000_003 + rank) % 2**63
    random.seed(own)
    torch.manual_seed(own)  # the CPU's and every GPU's
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(own % 2**32)
