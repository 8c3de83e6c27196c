"""The world-size guard: only the announced world passes."""

import pytest

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime.guard import check_world


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HVDKIT_WORLD_SIZE": ""},
        {"HVDKIT_WORLD_SIZE": "4"},
        {"HVDKIT_WORLD_SIZE": "4", "HVDKIT_HOSTS": "2"},
        {"HVDKIT_WORLD_SIZE": "2-4", "HVDKIT_HOSTS": "1-2"},
        {"HVDKIT_WORLD_SIZE": "4-8"},
    ],
)
def test_the_announced_world_passes(environ):
    check_world(4, 2, environ)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HVDKIT_WORLD_SIZE": "8"}, "4 ranks instead of 8 (HVDKIT_WORLD_SIZE)"),
        ({"HVDKIT_WORLD_SIZE": "5-8"}, "4 ranks instead of 5 to 8"),
        ({"HVDKIT_WORLD_SIZE": "1-3"}, "4 ranks instead of 1 to 3"),
        ({"HVDKIT_WORLD_SIZE": "4", "HVDKIT_HOSTS": "4"}, "2 hosts instead of 4 (HVDKIT_HOSTS)"),
        ({"HVDKIT_WORLD_SIZE": "2", "HVDKIT_HOSTS": "1"}, "4 ranks instead of 2 (HVDKIT_WORLD_SIZE) and 2 hosts"),
    ],
)
def test_another_world_fails_and_says_which(environ, said):
    with pytest.raises(HvdkitError) as failure:
        check_world(4, 2, environ)
    assert said in str(failure.value)
    assert failure.value.exit_code == 1


def test_one_rank_is_written_in_the_singular():
    with pytest.raises(HvdkitError, match=r"1 rank instead of 2"):
        check_world(1, 1, {"HVDKIT_WORLD_SIZE": "2"})


@pytest.mark.parametrize("text", ["four", "4-", "-4", "2-x", "0", "4-2", "1.5", "2-4-6", " 4"])
def test_an_announcement_that_is_no_number_is_an_input_error(text):
    with pytest.raises(InputError, match="HVDKIT_WORLD_SIZE"):
        check_world(4, 1, {"HVDKIT_WORLD_SIZE": text})
