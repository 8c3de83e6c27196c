"""`python -m hvdkit` is the same command as `hvdkit`."""

from hvdkit.cli import main

if __name__ == "__main__":
    main()
