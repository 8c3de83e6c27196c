"""The frames between a rank and its launcher survive any way of cutting the stream."""

import selectors
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.local.door import Door
from hvdkit.runtime.channel import Decoder, connect, encode

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


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError):
        list(Decoder().feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))


@pytest.mark.parametrize("shown", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 9, b"0" * 32, b"too short", b""])
def test_who_does_not_know_the_token_is_sent_away(shown: bytes) -> None:
    admitted: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        door = Door("127.0.0.1", ["127.0.0.1"], selector, admitted.append)
        host, port, _ = door.address.split()
        with socket.create_connection((host, int(port))) as stranger, connect(door.address) as rank:
            stranger.sendall(shown)
            stranger.shutdown(socket.SHUT_WR)
            while not admitted or len(selector.get_map()) > 1:  # the listener itself stays
                for key, _ in selector.select():
                    key.data(key.fileobj)
            rank.sendall(b"hello")
            assert admitted[0].recv(100) == b"hello"
            assert len(admitted) == 1
            admitted[0].close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()
