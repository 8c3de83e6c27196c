"""On the ranks' PYTHONPATH. Python imports `sitecustomize` at start, so no script needs a change for this:

- every Python process of a rank prints its stacks on SIGQUIT;
- a rank says at once that it raises an exception nobody catches. It may then wait for the others at exit, so that
  one of them, which only lost its partner, ends first and would be blamed;
- torch is imported faster.

It must load in any Python that a rank may start, also an old one.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import sys
import types

if sys.stderr is not None:
    faulthandler.register(signal.SIGQUIT, all_threads=True)

_address = os.environ.get("HVDKIT_RAISED")
if _address:
    _show = sys.excepthook

    def _tell_and_show(*exception: object) -> None:
        import socket  # not at start: most processes never raise

        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as wrapper:
                wrapper.sendto(str(os.getpid()).encode(), "\0" + _address)
        except OSError:
            pass  # the wrapper is gone; the exception itself matters more
        _show(*exception)

    sys.excepthook = _tell_and_show


class _TorchWithoutCollections:
    """Importing torch makes hundreds of thousands of objects, and all of them stay.

    Python would look through them for garbage again and again, also at exit: a quarter of a short rank's time.
    """

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_without_collections(module: types.ModuleType) -> None:
                if not gc.isenabled():  # the script has its own idea
                    return execute(module)
                gc.disable()
                try:
                    execute(module)
                    gc.freeze()
                finally:
                    gc.enable()

            spec.loader.exec_module = execute_without_collections
        return spec


sys.meta_path.insert(0, _TorchWithoutCollections())

# We stand before a sitecustomize that the installation may have of its own: run that one too.
_here = pathlib.Path(__file__).resolve().parent
_others = [folder for folder in sys.path if pathlib.Path(folder or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
