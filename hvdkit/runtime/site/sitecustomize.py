"""On the ranks' PYTHONPATH: every Python process of a rank prints its stacks on SIGQUIT.

Python imports `sitecustomize` at start, so a hanging script needs no change to be asked where it hangs.
"""

import faulthandler
import importlib.machinery
import importlib.util
import pathlib
import signal
import sys

if sys.stderr is not None:
    faulthandler.register(signal.SIGQUIT, all_threads=True)

# We stand before a sitecustomize that the installation may have of its own: run that one too.
_here = pathlib.Path(__file__).resolve().parent
_others = [folder for folder in sys.path if pathlib.Path(folder or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
