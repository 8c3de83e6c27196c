"""`python -m hvdkit.train` is the same as `hvdkit train`."""

import sys

from hvdkit.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    main()
