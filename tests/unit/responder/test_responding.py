"""Few are asked at a time and in a second, and what is over is asked of nobody."""

import itertools

from sandboxfs.responder.asked_process import AskedProcess
from sandboxfs.responder.responding import MOST_A_SECOND, MOST_AT_ONCE, MOST_IN_A_BURST, Asking


def nobody(question: bytes) -> AskedProcess:
    raise AssertionError("nothing is started")


def waiting(count: int) -> Asking:
    asking = Asking("the ask command", nobody, 0.0)
    asking.waiting = dict.fromkeys(range(count), b"")
    return asking


def started(asking: Asking, now: float) -> int:
    """Start as much as may be started, of processes that end at once."""
    for count in itertools.count():
        if asking.pause(now) != 0.0:
            return count
        del asking.waiting[next(iter(asking.waiting))]
        asking.spend()
    raise AssertionError("unreachable")


def test_a_flood_starts_a_burst_and_then_a_few_in_a_second() -> None:
    asking = waiting(100_000)
    assert started(asking, 0.0) == MOST_IN_A_BURST
    assert started(asking, 0.0) == 0
    pause = asking.pause(0.0)
    assert pause is not None
    assert 0 < pause <= 1 / MOST_A_SECOND
    assert sum(started(asking, step / 100) for step in range(1, 1001)) <= 10 * MOST_A_SECOND
    # What was not used is not saved up.
    assert started(asking, 1000.0) == MOST_IN_A_BURST


def test_with_nothing_to_ask_there_is_nothing_to_wait_for() -> None:
    assert waiting(0).pause(5.0) is None


def test_no_more_run_at_once_than_are_agreed() -> None:
    asking = waiting(10)
    asking.running = {number: AskedProcess.__new__(AskedProcess) for number in range(MOST_AT_ONCE)}
    assert asking.pause(5.0) is None
