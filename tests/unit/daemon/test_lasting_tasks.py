"""A task of the daemon that fails is begun again, whatever it failed with."""

import errno
import os

import pytest
import trio
import trio.testing

from sandboxfs.daemon.lasting_tasks import endure, in_a_thread


def short(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "error",
    [
        short(errno.EMFILE),
        short(errno.ENOSPC),
        MemoryError(),
        RuntimeError("can't start new thread"),
        ExceptionGroup("several", [short(errno.ENFILE), ExceptionGroup("more", [short(errno.ENOMEM)])]),
        KeyError("a bug"),
    ],
)
def test_a_task_that_fails_is_begun_again_until_it_succeeds(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    failures = [error] * 8
    ended: list[float] = []

    async def task() -> None:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        ended.append(trio.current_time())

    async def begin() -> float:
        began = trio.current_time()
        await endure("a task", task)
        return ended[0] - began

    # Never without a pause, and never with a long one.
    assert 1 < trio.run(begin, clock=autojump_clock) < 8 * 5


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def test_a_thread_that_cannot_be_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [RuntimeError("can't start new thread")] * 2
    monkeypatch.setattr("trio._threads.start_thread_soon", _refusing(refusals))
    assert trio.run(in_a_thread, len, "four") == 4
    assert not refusals


def _refusing(refusals: list[RuntimeError]) -> object:
    from trio._core import _thread_cache

    real = _thread_cache.start_thread_soon

    def start(*args: object) -> object:
        if refusals:
            raise refusals.pop()
        return real(*args)  # type: ignore[arg-type]

    return start


def test_what_fails_in_its_thread_is_not_done_again() -> None:
    done: list[int] = []

    def fail() -> None:
        done.append(1)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        trio.run(in_a_thread, fail)
    assert done == [1]
