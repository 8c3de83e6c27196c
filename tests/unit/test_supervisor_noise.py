"""What mpirun, ssh or Monarch print comes in pieces and from several at once; it is kept in whole lines."""

import os
import selectors
from collections import deque

import pytest

from hvdkit.local.supervisor import Outcome, Supervisor


def test_a_line_that_comes_in_pieces_is_one_line() -> None:
    supervisor = Supervisor.__new__(Supervisor)  # no plan: nothing is started
    supervisor.noise, supervisor.unfinished, supervisor.selector = deque(maxlen=40), None, selectors.DefaultSelector()
    streams = []
    for _ in range(2):
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        streams.append((os.fdopen(reading, "rb"), writing))
        supervisor.selector.register(streams[-1][0], selectors.EVENT_READ)
    for who, piece in ((0, b"Runtime"), (0, b"Error"), (0, b": no\n"), (1, b"two\nthr"), (1, b"ee"), (0, b"four\n")):
        stream, writing = streams[who]
        os.write(writing, piece)
        supervisor._on_noise(stream)
    assert list(supervisor.noise) == ["RuntimeError: no", "two", "three", "four"]
    for stream, writing in streams:
        os.close(writing)
        supervisor._on_noise(stream)
        stream.close()
    assert not supervisor.selector.get_map()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[vm:04850] plm:rsh: Warning: setpgid(4854,4854) failed in parent with errno=Permission denied(13)", b""),
        ("a warning that matters", b"[mpirun] a warning that matters\n"),
    ],
)
def test_after_a_success_what_means_nothing_is_not_shown(line: str, shown: bytes) -> None:
    supervisor, written = Supervisor.__new__(Supervisor), []
    supervisor.noise, supervisor.outcome = deque([line]), Outcome(exit_code=0, reason="")
    supervisor._everybody_left = lambda: True
    supervisor.writer = type("Writer", (), {"write": lambda self, stream, data: written.append(data)})()
    supervisor.loop()
    assert b"".join(written) == shown
