"""No process can take the descriptors that are left for the others."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.overlay.files import Shares

# Threads that there cannot be, each a process of its own as far as anybody can tell.
PROCESSES = st.integers(min_value=2**22 + 1, max_value=2**22 + 5)


def refusal(shares: Shares, thread: int) -> int:
    try:
        shares.check(thread)
    except OSError as error:
        return error.errno or -1
    shares.take(thread)
    return 0


def test_a_process_gets_half_and_the_next_half_of_the_rest() -> None:
    shares = Shares(100)
    for process, expected in ((2**22 + 1, 50), (2**22 + 2, 25), (2**22 + 3, 13)):
        got = 0
        while (why := refusal(shares, process)) == 0:
            got += 1
        assert (got, why) == (expected, errno.EMFILE)


def test_what_is_given_back_can_be_taken_again() -> None:
    shares = Shares(4)
    assert [refusal(shares, 2**22 + 1) for _ in range(3)] == [0, 0, errno.EMFILE]
    shares.give_back(2**22 + 1)
    assert [refusal(shares, 2**22 + 1) for _ in range(2)] == [0, errno.EMFILE]


@given(st.lists(PROCESSES, max_size=200), st.integers(min_value=1, max_value=60))
def test_the_limit_is_never_exceeded_and_a_newcomer_gets_the_last_ones(
    openers: list[int], limit: int
) -> None:
    shares = Shares(limit)
    taken = sum(refusal(shares, opener) == 0 for opener in openers)
    assert taken <= limit
    if taken < limit:
        assert refusal(shares, 2**22 + 99) == 0
    else:
        assert refusal(shares, 2**22 + 99) == errno.ENFILE


def test_the_threads_of_a_process_count_together() -> None:
    import threading

    shares = Shares(8)
    assert [refusal(shares, os.getpid()) for _ in range(4)] == [0] * 4
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(refusal(shares, threading.get_native_id())))
    thread.start()
    thread.join()
    assert found == [errno.EMFILE]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_even_a_tiny_limit_lets_the_first_open_something(limit: int) -> None:
    assert refusal(Shares(limit), 2**22 + 1) == 0
