"""On the ranks' PYTHONPATH. Python imports `sitecustomize` at start, so no script needs a change for this:

- every Python process of a rank prints its stacks on SIGQUIT;
- a rank says at once that it raises an exception nobody catches. It may then wait for the others at exit, so that
  one of them, which only lost its partner, ends first and would be blamed.
"""

import faulthandler
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

# We stand before a sitecustomize that the installation may have of its own: run that one too.
_here = pathlib.Path(__file__).resolve().parent
_others = [folder for folder in sys.path if pathlib.Path(folder or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
