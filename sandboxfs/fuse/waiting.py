"""Waiting requests: those that a person has to answer, and interrupted ones among them.

A waiting request is a copy of its bytes: no thread and no task waits with it. When its wait is over, the
request is made again.

The kernel sends INTERRUPT once for a request whose caller has got a signal, whichever signal; from then on
the caller cannot be woken by any other. Answering EINTR to every INTERRUPT would break programs that handle
signals: Go sends itself SIGURG all the time, git uses SIGALRM, and not even SA_RESTART repeats an open. So an
interrupted request goes on waiting, and the signals of its caller are looked at every now and then: the
request is given up when the caller is being killed, or when somebody wants the program to end (see
`wants_to_end`).
"""

import logging
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from sandboxfs.overlay.filesystem import Caller, Wait

log = logging.getLogger(__name__)

# Seconds between two looks at the signals of interrupted callers.
_EVERY = 0.1
# Interrupted requests that may begin to wait later: the kernel tells of each once.
_REMEMBERED = 256

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Signals that end a program and leave a core, unless the program handles them. The kernel turns other deadly
# signals into SIGKILL, for each thread, when they are sent.
_DUMPING = (
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGXCPU,
    signal.SIGXFSZ,
)


def _mask(*signals: signal.Signals) -> int:
    return sum(1 << number - 1 for number in signals)


_KILL, _END, _DUMP = _mask(signal.SIGKILL), _mask(*_ENDING), _mask(*_DUMPING)


def wants_to_end(thread: int) -> bool:
    """Tell whether a thread that waits has to go on: it was killed, was told to end, or is gone.

    A signal to end may have a handler; the program runs the handler, and perhaps opens the file again.
    """
    try:
        with open(f"/proc/{thread}/status", "rb") as content:
            status = content.read()
    except OSError:
        return True
    own, shared = _signals(status, b"SigPnd"), _signals(status, b"ShdPnd")
    if own & _KILL:
        return True
    pending = (own | shared) & ~_signals(status, b"SigBlk")
    handled = _signals(status, b"SigCgt") | _signals(status, b"SigIgn")
    return bool(pending & _END & ~_signals(status, b"SigIgn") or pending & _DUMP & ~handled)


def _signals(status: bytes, field: bytes) -> int:
    start = status.find(b"\n" + field + b":\t")
    if start < 0:
        return 0
    start += len(field) + 3
    return int(status[start : status.index(b"\n", start)], 16)


class WaitingRequest:
    """One request that waits: its bytes, and for what."""

    __slots__ = ("interrupted", "request", "thread", "wait")

    def __init__(self, request: bytes, thread: int, wait: Wait, *, interrupted: bool) -> None:
        self.request = request
        self.thread = thread
        self.wait = wait
        self.interrupted = interrupted


class WaitingRequests:
    """The requests of one mount that wait, by their unique numbers."""

    def __init__(
        self,
        spawn: Callable[[Callable[[], Awaitable[object]]], object],
        again: Callable[[memoryview, Caller], object],
        give_up: Callable[[int], object],
        ends: Callable[[int], bool] = wants_to_end,
    ) -> None:
        """*again* makes a request again; *give_up* answers the kernel that a request was interrupted."""
        self._spawn = spawn
        self._again = again
        self._give_up = give_up
        self._ends = ends
        self._waiting: dict[int, WaitingRequest] = {}
        self._interrupted: OrderedDict[int, None] = OrderedDict()
        self._watching = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, unique: int, request: bytes, thread: int, wait: Wait) -> None:
        """Keep a request until its wait is over."""
        interrupted = unique in self._interrupted
        self._waiting[unique] = WaitingRequest(request, thread, wait, interrupted=interrupted)
        wait.when_over(partial(self._over, unique))
        if interrupted:
            self._look_after()

    def interrupt(self, unique: int) -> None:
        """The kernel says that the caller of a request got a signal."""
        self._interrupted[unique] = None
        if len(self._interrupted) > _REMEMBERED:
            self._interrupted.popitem(last=False)
        waiting = self._waiting.get(unique)
        if waiting is not None:
            waiting.interrupted = True
            self._look_after()

    def end(self) -> list[int]:
        """Give every request up; the numbers of those that have to be answered."""
        left = list(self._waiting)
        for unique in left:
            self._waiting.pop(unique).wait.give_up()
        return left

    def _over(self, unique: int) -> None:
        # In a task of its own: the answer may come in the middle of another request.
        self._spawn(partial(self._resume, unique))

    async def _resume(self, unique: int) -> None:
        waiting = self._waiting.pop(unique, None)
        if waiting is not None:
            self._again(memoryview(waiting.request), waiting.wait.caller)

    def _look_after(self) -> None:
        self._look()
        if not self._watching and self._waiting:
            self._watching = True
            self._spawn(self._watch)

    async def _watch(self) -> None:
        try:
            while any(waiting.interrupted for waiting in self._waiting.values()):
                await trio.sleep(_EVERY)
                self._look()
        finally:
            self._watching = False

    def _look(self) -> None:
        for unique, waiting in list(self._waiting.items()):
            if waiting.interrupted and self._ends(waiting.thread):
                del self._waiting[unique]
                waiting.wait.give_up()
                self._give_up(unique)
