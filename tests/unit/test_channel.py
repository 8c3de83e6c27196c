"""The frames between a rank and its launcher survive any way of cutting the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.runtime.channel import Decoder, encode

frames = st.lists(st.tuples(st.sampled_from([b"O", b"E", b"X"]), st.binary(max_size=300)), max_size=20)


@given(frames, st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in(sent: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode(kind, payload) for kind, payload in sent)
    decoder, received, position, number = Decoder(), [], 0, 0
    while position < len(stream):
        size = cuts[number % len(cuts)]
        received += decoder.feed(stream[position : position + size])
        position, number = position + size, number + 1
    assert received == sent


def test_a_stranger_on_the_port_is_refused() -> None:
    with pytest.raises(ValueError):
        list(Decoder().feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
