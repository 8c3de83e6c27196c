"""Stacks on request: the way to see where a rank hangs."""

import contextlib
import faulthandler
import io
import signal
import sys


def install() -> None:
    """From now on SIGQUIT (Ctrl-\\) prints the stacks of all threads to stderr, and the process goes on."""
    # A stderr without a file descriptor (captured by a test or a notebook) cannot be written from a signal.
    with contextlib.suppress(AttributeError, io.UnsupportedOperation):
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=True, chain=False)
