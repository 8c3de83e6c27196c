"""The learning rate of each step, as a function of how much of the training is done.

Of the share, not of the step number: a run that goes on with another number of ranks takes other steps, but the same
samples, and follows the same curve.
"""

import math

from hvdkit.train.settings import TrainSettings

STEP_FACTOR = 0.1  # 'step' divides by ten ...
STEP_SHARES = (1 / 3, 2 / 3, 8 / 9)  # ... where the 90-epoch ImageNet recipe does, at 30, 60 and 80


def learning_rate(share: float, settings: TrainSettings, factor: int) -> float:
    """The rate when `share` (0 to 1) of the training is done, for a world whose batch is `factor` times one rank's.

    A larger batch allows longer steps, but not at once: early gradients are large and would throw the weights
    off, so the rate rises from that of one rank over the warm-up.
    """
    base = settings.learning_rate
    peak = base * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[settings.lr_scaling]
    if share < settings.warmup:
        return base + (peak - base) * share / settings.warmup
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "step":
        return peak * STEP_FACTOR ** sum(share >= milestone for milestone in STEP_SHARES)
    return peak * 0.5 * (1 + math.cos(math.pi * (share - settings.warmup) / (1 - settings.warmup)))
