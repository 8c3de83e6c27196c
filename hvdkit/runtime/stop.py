"""Being asked to stop: the signal is noted, and the ranks agree at the next step on when to leave."""

import signal


class StopRequest:
    """True once SIGTERM, or SIGUSR1 (which is what mpirun can pass on without killing), has arrived."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def listen(self) -> "StopRequest":
        """Install the handlers. As early as possible: until then such a signal ends the process."""
        for signum in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, frame: object) -> None:
        self._asked = True
