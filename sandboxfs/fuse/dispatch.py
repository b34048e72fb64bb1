"""Request dispatch: each request to its handler, its answer or errno to the device; requests that wait.

A processor that waits for a request goes to sleep after some microseconds, and waking the processor takes
longer than most answers do: time saved before that moment is saved twice. So requests are read from the
device and answered on it, without an object or a coroutine for each.

The error boundary is here, and only here: an OSError becomes its errno; any other exception becomes EIO and a
traceback in the log, and the mount lives. An opcode without a handler is refused with ENOSYS.

A request whose handler raises `Deferred` is answered later. Where the work gives the answer, the worker
thread writes the answer too; where the handler has to run again, a task waits for the work. A request whose
handler raises `Postponed` waits for a person: a copy of its bytes is kept, no thread and no task waits with
it, and it is made again when that wait is over.

The kernel sends INTERRUPT once for a request whose caller has got a signal, whichever signal; from then on
the caller cannot be woken by any other. Answering EINTR to every INTERRUPT would break programs that handle
signals: Go sends itself SIGURG all the time, git uses SIGALRM, and not even SA_RESTART repeats an open. So an
interrupted request goes on waiting, and the signals of its caller are looked at every now and then: the
request is given up when the caller is being killed, or when somebody wants the program to end (see
`wants_to_end`).
"""

import errno
import logging
import os
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Protocol, TypeVar, cast

import trio

from sandboxfs.fuse import protocol
from sandboxfs.fuse.handlers import Body, NotifierLike, RequestHandlers
from sandboxfs.fuse.protocol import Opcode
from sandboxfs.overlay.filesystem import AnonymousCaller, Caller, Deferred, Filesystem, Postponed, Wait

log = logging.getLogger(__name__)

T = TypeVar("T")

Spawn = Callable[[Callable[[], Awaitable[object]]], object]
"""Starts a task."""
DoBeside = Callable[[Callable[[], object]], Awaitable[object]]
"""Does work in another thread while other requests are answered, and gives the work's result."""

MOST_THREADS = 40
"""The most requests answered by threads of their own at once; for more, tasks take turns."""

# Seconds to wait, at the end, for an answer that a thread is writing.
_LAST_WORDS = 2.0
# The kernel takes no answer with an errno from here on; some filesystems use such numbers internally.
_NO_ERRNO = 512
# The most callers that are remembered.
_ACQUAINTANCES = 256
# Answers from this size on are written from two buffers, not joined in memory first.
_LARGE = 1 << 14
_head = protocol.HEADER.pack


class AfterReply(Protocol):
    """Work left for after an answer, because no caller needs to wait for it; its length tells whether any."""

    def __len__(self) -> int: ...
    def settle(self) -> None: ...


class AnsweringThreads:
    """The count of threads that answer requests, and whether threads may still answer."""

    def __init__(self) -> None:
        self._change = Condition()
        self._free = MOST_THREADS
        self._answering = 0
        self._serving = True

    def take(self) -> bool:
        with self._change:
            taken = self._serving and self._free > 0
            self._free -= taken
            return taken

    @contextmanager
    def given_back(self) -> Iterator[bool]:
        """Whether the device still takes answers; if so, it does until the end of the block."""
        with self._change:
            serving = self._serving
            self._answering += serving
        try:
            yield serving
        finally:
            with self._change:
                self._free += 1
                self._answering -= serving
                self._change.notify_all()

    def end(self) -> None:
        """Let no thread answer from now on, and wait for the threads that are answering."""
        with self._change:
            self._serving = False
            self._change.wait_for(lambda: self._answering == 0, _LAST_WORDS)


class Dispatcher:
    """Answers all requests to one filesystem, on one device."""

    def __init__(
        self,
        filesystem: Filesystem,
        device: int,
        beside: DoBeside,
        spawn: Spawn,
        notifier: NotifierLike,
        after_reply: AfterReply,
        *,
        every_listing: bool = False,
    ) -> None:
        """With *every_listing* the kernel asks at each opening and reading of a directory, for the record."""
        self._device = device
        self._beside = beside
        self._spawn = spawn
        self._after_reply = after_reply
        self._threads = AnsweringThreads()
        # The last callers: several programs often take turns.
        self._callers: dict[tuple[int, int, int], Caller] = {}
        self._handlers = RequestHandlers(filesystem, notifier, every_listing=every_listing).by_opcode()
        self._handlers[Opcode.INTERRUPT] = self._interrupt
        self._waiting = WaitingRequests(spawn, self.answer, partial(self._refuse, number=errno.EINTR))

    def answer(self, request: memoryview, caller: Caller | None = None) -> None:
        """Answer a request, now or later; *caller* where the request has waited for a person."""
        _, opcode, unique, ino, uid, gid, pid = protocol.header_of(request)
        handler = self._handlers.get(opcode)
        if handler is None:
            self._refuse(unique, errno.ENOSYS)
            return
        who = uid, gid, pid
        caller = caller or self._callers.get(who) or self._met(who)
        try:
            body = handler(ino, request, caller)
        except Deferred as deferred:
            if not self._left_to_thread(unique, opcode, deferred):
                # The next request overwrites the memory that holds this one.
                kept = memoryview(bytes(request))
                again = partial(handler, ino, kept, caller)
                self._spawn(partial(self._answer_later, kept, deferred, again))
            return
        except Postponed as postponed:
            self._waiting.add(unique, bytes(request), pid, postponed.wait)
            return
        except OSError as error:
            self._refuse(unique, error.errno or errno.EIO)
        except Exception as bug:
            self._give_up(unique, opcode, bug)
        else:
            if body is not None:
                self._reply(unique, body)
        if self._after_reply:
            self.settle()

    def settle(self) -> None:
        """Do the work left for after an answer."""
        try:
            self._after_reply.settle()
        except Exception:
            log.exception("bug after an answer; nobody is told")

    def close(self) -> None:
        """Answer what waits, and let no thread answer any more: the device is about to be closed."""
        for unique in self._waiting.end():
            self._refuse(unique, errno.EACCES)
        self._threads.end()

    def _interrupt(self, ino: int, request: memoryview, caller: Caller) -> None:
        self._waiting.interrupt(protocol.interrupted(request))

    def _met(self, who: tuple[int, int, int]) -> Caller:
        if len(self._callers) >= _ACQUAINTANCES:
            self._callers.clear()
        caller = self._callers[who] = AnonymousCaller(*who)
        return caller

    def _left_to_thread(self, unique: int, opcode: int, deferred: Deferred) -> bool:
        """Let a thread do the work and answer, where the work gives the answer; whether a thread does."""
        if not (deferred.answers and self._threads.take()):
            return False
        work = partial(self._answer_from_thread, unique, opcode, deferred.work)
        try:
            trio.lowlevel.start_thread_soon(work, _take_it_as_done)
        except RuntimeError:
            # The system has no further thread: the work is done here, and all other requests wait.
            work()
        return True

    async def _answer_later(
        self, request: memoryview, deferred: Deferred, again: Callable[[], Body | None]
    ) -> None:
        _, opcode, unique, *_, thread = protocol.header_of(request)
        try:
            body = await finish(self._beside, deferred, again)
        except Postponed as postponed:
            self._waiting.add(unique, bytes(request), thread, postponed.wait)
            return
        except OSError as error:
            self._refuse(unique, error.errno or errno.EIO)
        except Exception as bug:
            self._give_up(unique, opcode, bug)
        else:
            self._reply(unique, b"" if body is None else body)
        self.settle()

    def _answer_from_thread(self, unique: int, opcode: int, work: Callable[[], object]) -> None:
        """Answer with the result of *work*, in the thread that does the work: no task has to be scheduled."""
        try:
            body = cast(Body | None, work())
            answer = partial(self._reply, unique, b"" if body is None else body)
        except OSError as error:
            answer = partial(self._refuse, unique, error.errno or errno.EIO)
        except Exception as bug:
            answer = partial(self._give_up, unique, opcode, bug)
        with self._threads.given_back() as serving:
            if serving:
                answer()

    def _give_up(self, unique: int, opcode: int, bug: BaseException | None) -> None:
        log.error("bug in %s; the kernel gets EIO", Opcode(opcode).name.lower(), exc_info=bug)
        if opcode not in (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT):
            self._refuse(unique, errno.EIO)

    def _reply(self, unique: int, body: Body) -> None:
        size = len(body)
        head = _head(16 + size, 0, unique)
        try:
            if size < _LARGE:
                os.write(self._device, head + body)
            else:
                os.writev(self._device, (head, body))
        except OSError as error:
            _bear(error)

    def _refuse(self, unique: int, number: int) -> None:
        try:
            os.write(self._device, _head(16, -number if 0 < number < _NO_ERRNO else -errno.EIO, unique))
        except OSError as error:
            _bear(error)


async def finish(beside: DoBeside, deferred: Deferred, again: Callable[[], T]) -> T:
    """Do the work of *deferred*; then the answer is the work's result, or that of asking *again*."""
    while True:
        try:
            result = await beside(deferred.work)
            return cast(T, result) if deferred.answers else again()
        except Deferred as another:
            following = another
        finally:
            deferred.over()
        deferred = following


def _take_it_as_done(_: object) -> None:
    """The completion callback for a thread that answers by itself."""


def _bear(error: OSError) -> None:
    """Log an answer that the kernel did not take, where that is not expected.

    ENOENT: the caller was interrupted and waits no more. ENODEV: unmounted; the request loop notices too.
    """
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        log.error("the kernel does not take an answer: %s", error.strerror)


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
        spawn: Spawn,
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
