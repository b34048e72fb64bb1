"""Widening a run while its program runs: a further directory served, mounted, and held to the run's end.

The process of the run follows the widenings of its sandbox's daemon. What takes time is done by a helper
process (`widen_helper`), one at a time, so that signals and streams are passed on meanwhile. When the helper
has a view mounted where the program sees it, the run takes hold of the view's lifeline, as of those that it
has from the beginning, and only then the helper ends. Both have nothing but descriptors of each other's: when
one is killed, the other lets go of everything.

Under Landlock, and without any confinement, nothing can be shown that was not there from the beginning; the
daemon is told so, for programs that ask.
"""

import json
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandboxfs.confine.detect import Confinement
from sandboxfs.confine.home import Home
from sandboxfs.control.control_socket import DaemonBug, EventStream, ask, control_address
from sandboxfs.control.prestart import package_environment
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.policy.assertions import Assertions
from sandboxfs.runs.run_home import hold_home_alone, share_home
from sandboxfs.runs.run_views import RunObservation, RunStart, join_view, observed

if TYPE_CHECKING:
    import subprocess

    from sandboxfs.runs.open_run import OpenRun

_OBSTACLES = {
    Confinement.LANDLOCK: "the program is confined with Landlock, under which nothing can be added later",
    Confinement.NONE: "the program is not confined: other paths are where they always are",
}
_MESSAGE_LIMIT = 1 << 16
# Seconds for the daemon to hear how a widening went.
_PATIENCE = 5.0


@dataclass(frozen=True)
class WideningOrder:
    """What the daemon asks of the run: to show a directory, or (without a *mode*) to show it no more."""

    number: int
    path: str
    mode: str | None


@dataclass(frozen=True)
class ShownDirectory:
    """A directory that is shown since the program has started, because of grant *number*."""

    number: int
    place: Path
    start: RunStart


class RunWidening:
    """What one run shows besides, since its program has started."""

    def __init__(
        self, session: "OpenRun", assertions: Assertions, outside: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._session = session
        self._assertions = assertions
        self._outside = outside
        self._address = control_address(session.view.store.locations, session.name)
        self._stream: EventStream | None = None
        self._run = 0
        self._process = 0
        self._orders: deque[WideningOrder] = deque()
        self._order: WideningOrder | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._shown: dict[int, ShownDirectory] = {}
        # What was shown and is not any more, with what its daemon saw.
        self.gone: list[tuple[RunStart, RunObservation]] = []
        # The lock on the private home, while the program runs.
        self.home_lock: int | None = None

    def __enter__(self) -> Self:
        """Follow the widenings; a daemon that knows none of them, or has no room, is left alone."""
        choice = self._session.choice.confinement
        obstacle = _OBSTACLES.get(choice)
        try:
            with self._outside():
                self._stream = EventStream(self._address, "widenings", {"obstacle": obstacle})
                for event in self._stream.arrived():
                    self._hear(event)
        except SandboxError:
            self._leave()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._end_helper()
        for start in (*self.beginnings, *(start for start, _ in self.gone)):
            start.view.let_go()

    @property
    def beginnings(self) -> list[RunStart]:
        """The views that were added, and are shown still."""
        return [one.start for one in self._shown.values()]

    # Beside the program

    def begin(self, process: int, poll: select.poll) -> None:
        self._process = process
        if self._stream is not None:
            poll.register(self._stream, select.POLLIN)

    def attend(self, descriptor: int, poll: select.poll) -> bool:
        """Hear of widenings, and of the helper; False when a view that is shown was lost."""
        if any(descriptor == start.view.watch for start in self.beginnings):
            return False
        if self._stream is not None and descriptor == self._stream.fileno():
            self._follow(self._stream, poll)
        elif self._channel is not None and descriptor == self._channel.fileno():
            self._finish(self._channel, poll)
        else:
            return True
        self._next(poll)
        return True

    def _follow(self, stream: EventStream, poll: select.poll) -> None:
        try:
            for event in stream.arrived():
                self._hear(event)
        except (SandboxError, DaemonBug):
            stream.ended = True
        if stream.ended:
            poll.unregister(stream)
            self._leave()

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.__exit__(None, None, None)

    def _hear(self, event: object) -> None:
        match event:
            case {"event": "begin", "run": int(run)}:
                self._run = run
            case {"event": "widen", "id": int(number), "path": str(path), "mode": str(mode)}:
                self._orders.append(WideningOrder(number, path, mode))
            case {"event": "narrow", "id": int(number)}:
                self._orders.append(WideningOrder(number, "", None))
            case _:
                # A newer daemon may tell of other things.
                return

    def _next(self, poll: select.poll) -> None:
        """Begin with what is to be done next, if there is anything and nothing is being done."""
        while self._orders and self._helper is None:
            order = self._orders.popleft()
            if order.mode is None and order.number not in self._shown:
                self._tell(order, None)
                continue
            try:
                channel = self._start_helper(order)
            except (SandboxError, OSError) as error:
                self._conclude(order, str(error))
                continue
            self._order = order
            poll.register(channel, select.POLLIN)

    def _start_helper(self, order: WideningOrder) -> socket.socket:
        import subprocess
        import sys

        session = self._session
        shown = self._shown.get(order.number)
        if shown is None and self._in_private_home(Path(order.path)) and self.home_lock is not None:
            hold_home_alone(self.home_lock, session.private_home)
        orders = {
            "sandbox": session.name,
            "process": self._process,
            "path": order.path,
            "mode": order.mode,
            "companion": None if shown is None else shown.start.view.record.name,
            "deny": shown is not None and shown.start.view.lifeline is not None,
            "current": session.request.current,
            "home": str(session.home),
            "home_kind": session.request.home.value,
            "no_writes": list(self._assertions.no_writes),
            "writes_only": list(self._assertions.writes_only),
        }
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = channel
        with theirs:
            self._helper = subprocess.Popen(
                [sys.executable, "-P", "-m", "sandboxfs.runs.widen_helper", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=package_environment() | session.command_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        channel.send(json.dumps(orders).encode())
        return channel

    def _in_private_home(self, place: Path) -> bool:
        return self._session.request.home is Home.PRIVATE and self._session.home in place.parents

    def _finish(self, channel: socket.socket, poll: select.poll) -> None:
        """Hear from the helper, which has done what it was told or could not."""
        order = self._order
        if order is None:
            return
        try:
            said = json.loads(channel.recv(_MESSAGE_LIMIT) or b"{}")
            problem = said.get("problem", "the process that was to do it died")
            if problem is None and order.mode is None:
                self._let_go_of(order.number, poll)
            elif problem is None:
                problem = self._hold(order, said, poll)
        except (SandboxError, DaemonBug, OSError, ValueError) as error:
            problem = str(error)
        poll.unregister(channel)
        self._conclude(order, problem)

    def _hold(self, order: WideningOrder, said: dict[str, object], poll: select.poll) -> str | None:
        """Hold the view that the helper has mounted, as long as the helper still does."""
        view = join_view(self._session.view.store, str(said.get("name")))
        if view is None:
            return "its daemon died"
        view.resumed = said.get("resumed") is not False
        observation, when = said.get("observation"), said.get("when")
        start = RunStart(
            view,
            when if isinstance(when, int) else 0,
            observation if isinstance(observation, str) else None,
        )
        self._shown[order.number] = ShownDirectory(order.number, Path(order.path), start)
        poll.register(view.watch, select.POLLIN)
        return None

    def _let_go_of(self, number: int, poll: select.poll) -> None:
        """Hold a view no more that was unmounted: its daemon ends, unless others hold it."""
        start = self._shown.pop(number).start
        poll.unregister(start.view.watch)
        with self._outside():
            self.gone.append((start, observed(start, end=True)))
        start.view.leave_to_parent()

    def _conclude(self, order: WideningOrder, problem: str | None) -> None:
        self._end_helper()
        self._order = None
        place = Path(order.path)
        if self.home_lock is not None and order.mode is not None and self._in_private_home(place):
            added = place.relative_to(self._session.home) if problem is None else None
            with suppress(OSError):
                share_home(self.home_lock, added)
        self._tell(order, problem)

    def _tell(self, order: WideningOrder, problem: str | None) -> None:
        about = {"run": self._run, "id": order.number, "problem": problem}
        # The daemon may be ending.
        with suppress(SandboxError, DaemonBug), self._outside():
            try:
                ask(self._address, "widened", about, _PATIENCE)
            except UsageError:
                # It has lost its patience, and the grant is gone: this process may have been stopped.
                if order.number in self._shown and order.mode is not None:
                    self._orders.append(WideningOrder(order.number, "", None))

    def _end_helper(self) -> None:
        """End the helper: what it has made and nobody holds ends with it."""
        helper, self._helper = self._helper, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if helper is not None:
            helper.kill()
            helper.wait()
