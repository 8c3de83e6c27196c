"""On the ranks' PYTHONPATH. Python imports `sitecustomize` at start, so no script needs a change for this:

- every Python process of a rank prints its stacks on SIGQUIT;
- a rank says at once that it raises an exception nobody catches. It may then wait for the others at exit, so that
  one of them, which only lost its partner, ends first and would be blamed;
- torch is imported faster.

It must load in any Python that a rank may start, also an old one.
"""

import contextlib
import faulthandler
import gc
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import sys

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

    Python would look through them for garbage again and again, also at exit: a quarter of a short rank's time. What the
    script has made before is left out of later collections with them, so it must not be much.
    """

    few = 300000
    busy = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.busy:
            return None
        self.busy = True  # now the others are asked
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is not None:
            with contextlib.suppress(AttributeError):  # a loader that lets nobody change it
                spec.loader.exec_module = lambda module: self.execute(execute, module)
        return spec

    def execute(self, execute, module):
        if not gc.isenabled():  # the script has its own idea
            return execute(module)
        all_may_stay = len(gc.get_objects()) < self.few
        gc.disable()
        try:
            execute(module)
            if all_may_stay:
                gc.freeze()
        finally:
            gc.enable()


if hasattr(gc, "freeze"):
    sys.meta_path.insert(0, _TorchWithoutCollections())

# We stand before a sitecustomize that the installation may have of its own: run that one too.
_here = pathlib.Path(__file__).resolve().parent
_others = [folder for folder in sys.path if pathlib.Path(folder or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
