"""A user's own model or data set, named as module:function."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from hvdkit.errors import InputError


def import_own(flag: str, name: str) -> Callable:
    """The function of 'module:function'; modules of the current folder come first, as with `python -m`."""
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not, and its traceback says where
        raise InputError(
            f"--{flag} {name}: there is no module '{error.name}' in {here} or on PYTHONPATH."
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"--{flag} {name}: {module.__file__} has no function '{function_name}'.")
    return function
