"""What mpirun, ssh or Monarch print comes in pieces and from several at once; it is kept in whole lines."""

import os
import selectors
from collections import deque

from hvdkit.local.supervisor import Supervisor


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
