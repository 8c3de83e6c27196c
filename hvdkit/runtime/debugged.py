"""`python -m hvdkit.runtime.debugged SCRIPT …` or `-m MODULE …`: runs it, and opens pdb where an exception ended it.

`python -m pdb` would run the program a second time when it ends, and a rank cannot join its world twice.
"""

import pdb
import runpy
import sys
import traceback
from pathlib import Path


def main(words: list[str]) -> None:
    """Run the program as Python would have; `breakpoint()` in it works as always."""
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[0] = "" if is_module else str(Path(words[0]).resolve().parent)
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        pdb.post_mortem(sys.exc_info()[2])
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
