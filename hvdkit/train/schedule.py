"""The learning rate of each step."""

import math


def learning_rate(step: int, steps: int, base: float, size: int, warmup: int) -> float:
    """From `base` to `base * size` over the first `warmup` steps, then along a cosine towards 0.

    A world of `size` ranks averages over `size` times as many samples, so it can take longer steps, but
    not at once: early gradients are large and would throw the weights off.
    """
    peak = base * size
    if step < warmup:
        return base + (peak - base) * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
