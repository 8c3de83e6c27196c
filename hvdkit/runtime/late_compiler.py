"""Optimizers that leave torch's compiler alone until something is compiled.

torch.optim imports torch._dynamo, and with it hundreds of files, only to tell it what not to compile. That takes a rank
nearly as long as torch itself, and all ranks of a job may read them from one shared disk. As long as nobody else has
imported it, there is nobody to tell. (DDP does import it, always.)
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"  # where torch keeps what it made of a function that is not to be compiled


def put_off() -> None:
    """From now on making and using an optimizer imports the compiler no more; who compiles still gets all of it.

    On a torch that is built differently the import comes as before.
    """
    if _COMPILER in sys.modules:
        return
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        _put_off_disabling(vars(Optimizer).get(name))
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        if hasattr(step, "__wrapped__") and step.__code__.co_name == "_use_grad":
            kind.step = _without_break(step)


def _put_off_disabling(method: Callable[..., Any] | None) -> None:
    plain = getattr(method, "__wrapped__", None)
    if plain is None or hasattr(plain, _MARK):
        return

    def run(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        vars(plain).pop(_MARK, None)  # torch puts its own there
        return method(*args, **kwargs)

    setattr(plain, _MARK, run)


def _without_break(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step without the mark for the compiler before and after it."""

    @functools.wraps(step.__wrapped__)
    def run(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step.__wrapped__(self, *args, **kwargs)

    return run
