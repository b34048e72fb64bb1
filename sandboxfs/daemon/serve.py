"""Serving: the daemon's life, from its first to its last moment, and the parts of its session.

The daemon holds the lock of its one sandbox and serves the view until the view is unmounted, a signal asks
the daemon to end, or no process holds its lifeline any more. Entries that an earlier daemon left in the work
directory are removed first; a mountpoint that sandboxfs made itself is removed last.

A session, one mounted lifetime of the sandbox, has these parts: the overlay, behind the guard, behind the
control directory; the journal and the audit log, which record every decision; and the control socket, through
which commands change the policy and edit the upper.
"""

import gc
import logging
import os
import resource
import shlex
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sandboxfs.control.control_socket import control_address
from sandboxfs.control.request_limit import request_limit
from sandboxfs.daemon.control_peers import ViewWatch
from sandboxfs.daemon.control_server import ControlServer
from sandboxfs.daemon.event_replay import EventReplay, ReplayDir
from sandboxfs.daemon.host_follower import HostFollower, foreign_mountpoints, watch_mounts
from sandboxfs.daemon.lasting_tasks import endure
from sandboxfs.daemon.observations import Observations
from sandboxfs.daemon.program_lookup import ProgramLookup
from sandboxfs.daemon.question_control import QuestionControl, RequestFiles
from sandboxfs.daemon.questions import Questions
from sandboxfs.daemon.session_control import PolicyControl, UpperControl
from sandboxfs.daemon.session_log import (
    DenialPrinter,
    SessionJournal,
    changes_report,
    denials_report,
    policy_report,
)
from sandboxfs.daemon.widenings import README, Widenings
from sandboxfs.errors import MountFailed
from sandboxfs.fuse.connection import serve
from sandboxfs.fuse.notify import Notifier
from sandboxfs.fuse.protocol import drops_what_is_written_over
from sandboxfs.hostfs.inotify import allowance
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.nodes import MOST_OPEN
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.paths import make_directories, quoted
from sandboxfs.state.audit import AuditLog, Level
from sandboxfs.state.audit_file import AUDIT_NAME, read_head
from sandboxfs.state.disk import empty_directory
from sandboxfs.state.kept_grants import GrantFile
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import lifeline_path, nobody_holds, remove_lifeline
from sandboxfs.state.store import SandboxRecord

if TYPE_CHECKING:
    from sandboxfs.review.host_ignores import HostIgnores
    from sandboxfs.upper.sandbox_layers import LayerPaths


class Session:
    """Everything that serves one sandbox, put together."""

    def __init__(self, locations: Locations, record: SandboxRecord, overlay: Overlay) -> None:
        settings = record.settings
        places = locations.sandbox(record.name)
        level = Level(settings.audit.level.value)
        self.overlay = overlay
        self.address = control_address(locations, record.name)
        self._record = record
        self._audit_path = places.home / AUDIT_NAME
        self._audit = AuditLog(
            self._audit_path,
            record.name,
            level=level,
            size_limit=settings.audit.size,
            keep=settings.audit.keep,
        )
        self.journal = SessionJournal(
            self._audit, level, {"symlinks": settings.symlinks.value, "read_only": record.read_only}
        )
        self.policy_control = PolicyControl(
            settings.policy, record.workspace, self.journal, places.home, partial(_ignores, locations, record)
        )
        links = LinkGuard(
            overlay,
            self.journal,
            settings.symlinks,
            os.fsencode(record.workspace),
            os.fsencode(record.mountpoint),
        )
        self.telling = Notifier()
        overlay.tell_of_modes(self.telling.forget_attributes)
        self.questions = Questions(
            ProgramLookup(),
            self._audit,
            str(record.workspace),
            trio.current_time,
            timeout=settings.ask_timeout,
            kernel_limit=request_limit(),
        )
        self.questions.explain = self.journal.explain
        file = GrantFile(record.config or locations.config, record.workspace, record.mountpoint)
        self._kept = file.read()
        self.widenings = Widenings(self.questions, self._audit, record.workspace)
        self.asking = QuestionControl(self.questions, self.widenings, file, record.name)
        guard = Guard(overlay, self.policy_control.compiled(), self.journal, links, self.questions)
        self.asking.serve(guard.withdraw, self.telling.invalidate)
        self.policy_control.changed = self.questions.recheck
        self.defer = guard.defer_records
        self.policy_control.serve(guard, self.telling.invalidate)
        observations = Observations(overlay, str(record.workspace))
        observations.serve(guard.watch_handles, overlay.mapped, self.telling.invalidate)
        self.journal.observer = observations
        self.filesystem = ReplayDir(
            guard,
            {
                b"README": lambda: README,
                b"policy": lambda: policy_report(self.policy_control.policy, record.workspace),
                b"denials": lambda: denials_report(
                    self.journal,
                    self.policy_control.policy,
                    record.workspace,
                    self.policy_control.ignored,
                ),
                b"changes": lambda: changes_report(
                    _layer_paths(locations, record),
                    record.workspace,
                    self.policy_control.policy,
                    self.policy_control.ignored,
                ),
            },
            RequestFiles(self.questions, self.widenings),
            self.widenings,
        )
        self.upper_control = UpperControl(overlay, guard, places.commits, self.telling.refresh)
        self._echoes = EventReplay(self.filesystem, record.mountpoint)
        self.follower = HostFollower(
            overlay.noticing(), guard.decide_anew, self.telling.refresh, self._echoes, overlay.suspect_all
        )
        self.control = ControlServer(
            self.policy_control.handlers()
            | self.upper_control.handlers()
            | observations.handlers()
            | self.asking.handlers()
            | self.widenings.handlers(),
            view=ViewWatch(record.mountpoint),
            harmless={"status", "rules", "why"},
        )

    def prepare(self) -> None:
        """Begin with the answers that were kept; the clock of questions runs."""
        self.questions.grants.keep_before(self._kept, self.policy_control.policy)

    def begin(self) -> None:
        """Record that the view can be used."""
        policy = self._record.settings.policy
        before, now = read_head(self._audit_path), self.journal.digest(policy)
        if before is not None and before.policy not in (None, now):
            # The parent is the command that started the daemon: the command still waits.
            self.journal.policy_changed("mount", policy, os.getppid(), os.getuid())
        self._audit.event("mounted", workspace=str(self._record.workspace), pid=os.getpid(), policy=now)

    def close(self) -> None:
        self._echoes.close()
        self.filesystem.close()
        self._audit.event("unmounted")
        self._audit.close()


def _layer_paths(locations: Locations, record: SandboxRecord) -> "LayerPaths":
    """The paths of the layers, with mounts in the workspace masked: at its own the daemon must not look."""
    from sandboxfs.upper.sandbox_layers import LayerPaths, masked_paths

    places = locations.sandbox(record.name)
    masked = [record.mountpoint, locations.state, *foreign_mountpoints(record.workspace, record.mountpoint)]
    return LayerPaths(
        [record.workspace],
        places.upper,
        places.index,
        places.baseline,
        masked_paths(record.workspace, masked),
        masked_paths(record.workspace, record.covered),
    )


def _ignores(locations: Locations, record: SandboxRecord) -> "HostIgnores":
    # Imported here: few policies are about what git ignores.
    from sandboxfs.control.mount_table import reach_on_the_host
    from sandboxfs.review.host_ignores import ignores_of

    paths = _layer_paths(locations, record)
    return ignores_of(record.workspace, paths.masked | paths.covered, reach_on_the_host)


log = logging.getLogger(__name__)

# Used where the limit is infinite: the kernel's default maximum (fs.nr_open).
_MOST_DESCRIPTORS = 1 << 20
End = Callable[[], Awaitable[None]]
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_sandbox(
    locations: Locations,
    record: SandboxRecord,
    ready: Callable[[], None],
    *,
    foreground: bool,
    lifeline: int | None = None,
) -> None:
    """Mount and serve the sandbox of *record*; return when it is unmounted."""
    # The overlay makes files with exactly the modes that callers ask for.
    os.umask(0)
    places = locations.sandbox(record.name)
    try:
        with ExitStack() as stack:
            if record.own_mountpoint:
                ready = stack.enter_context(_covered(record.mountpoint, ready))
            _serve(locations, record, ready, foreground=foreground, lifeline=_Lifeline.of(lifeline, places))
    finally:
        if lifeline is not None:
            remove_lifeline(lifeline_path(places))


@contextmanager
def _covered(mountpoint: Path, ready: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Make the mountpoint, and remove it in the end.

    Once the view is mounted, the directory below loses all permissions: a program that goes on after the end
    of the view must get an error, not a directory in which every file that the program writes is lost.
    """
    make_directories(mountpoint)
    # A killed daemon leaves the directory without permissions; fusermount3 wants a writable mountpoint.
    mountpoint.chmod(stat.S_IRWXU)
    below = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def cover() -> None:
        os.fchmod(below, 0)
        ready()

    try:
        yield cover
    finally:
        os.close(below)
        # Fails when another mount covers the mountpoint meanwhile, or when it holds entries.
        with suppress(OSError):
            mountpoint.rmdir()


def _serve(
    locations: Locations,
    record: SandboxRecord,
    ready: Callable[[], None],
    *,
    foreground: bool,
    lifeline: "_Lifeline | None",
) -> None:
    places = locations.sandbox(record.name)
    empty_directory(places.work)
    # A sandbox that an earlier version of sandboxfs made has no baseline directory.
    make_directories(places.baseline)
    descriptors = Descriptors.of(_raise_descriptor_limit())
    overlay = Overlay(
        OverlayPaths(
            lowers=[record.workspace],
            upper=places.upper,
            work=places.work,
            index=places.index,
            baseline=places.baseline,
        ),
        hidden=_hidden(locations, record),
        sealed=[record.mountpoint],
        covered=record.covered,
        watches=allowance(),
        open_files=descriptors.files,
        open_directories=descriptors.directories,
    )
    _check_covered(record, overlay)
    overlay.beside.allowed = True
    if drops_what_is_written_over():
        overlay.let_writes_go_around_pages()
    session = Session(locations, record, overlay)
    printer = DenialPrinter(sys.stderr)
    if foreground:
        session.journal.told.append(printer)
    # The objects made until now live as long as the daemon: the collector need not look at them repeatedly.
    gc.freeze()
    gc.enable()
    try:
        trio.run(_serve_until_told, session, record, ready, lifeline)
    finally:
        session.close()
        printer.finish()


@dataclass(frozen=True)
class _Lifeline:
    """The daemon's end of the lifeline that runs hold; *path* is the name of the FIFO."""

    reading: int
    path: Path

    @classmethod
    def of(cls, reading: int | None, places: SandboxPlaces) -> "_Lifeline | None":
        return None if reading is None else cls(reading, lifeline_path(places))

    async def end_when_let_go(self, end: End) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.reading)
            if nobody_holds(self.reading, self.path):
                log.info("nobody uses the view any more")
                await end()
                return


async def _serve_until_told(
    session: Session, record: SandboxRecord, ready: Callable[[], None], lifeline: _Lifeline | None
) -> None:
    failure: Exception | None = None
    session.prepare()
    # Signals are received from before the mount on: a signal must never leave a mount behind.
    with trio.open_signal_receiver(*_ENDING) as signals:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                session.questions.end()
                await session.follower.finish()
                nursery.cancel_scope.cancel()

            nursery.start_soon(_end_on_signal, signals, end)
            if lifeline is not None:
                nursery.start_soon(endure, "the lifeline", partial(lifeline.end_when_let_go, end))
            nursery.start_soon(endure, "watching the mount table", partial(_watch_mounts, session, record))
            nursery.start_soon(session.follower.run)
            nursery.start_soon(endure, "the clock of questions", session.asking.run)
            nursery.start_soon(endure, "git's ignore rules", session.policy_control.follow_ignores)
            nursery.start_soon(endure, "asking for directories", session.widenings.run)
            try:
                await nursery.start(session.control.serve, session.address)
                await serve(
                    session.filesystem,
                    str(record.mountpoint),
                    session.telling,
                    read_only=record.read_only,
                    allow_other=record.allow_other,
                    ready=partial(_begin, session, ready),
                    defer=session.defer,
                    every_listing=session.journal.reads,
                )
            except Exception as error:
                # Carried out of the nursery by hand: the nursery would wrap the exception in a group.
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _watch_mounts(session: Session, record: SandboxRecord) -> None:
    overlay = session.overlay
    # Mounts from before the watch began, or from a pause between two attempts, are news as well.
    overlay.suspect_all()

    def seal(mounted: Iterable[Path]) -> None:
        places = list(mounted)
        overlay.seal_foreign(places)
        session.policy_control.seal(places)

    await watch_mounts(record.workspace, record.mountpoint, seal, overlay.suspect_all)


def _begin(session: Session, ready: Callable[[], None]) -> None:
    session.begin()
    ready()


async def _end_on_signal(signals: AsyncIterator[int], end: End) -> None:
    async for number in signals:
        log.info("told to end by %s", signal.Signals(number).name)
        await end()


def _check_covered(record: SandboxRecord, overlay: Overlay) -> None:
    """Refuse a view in which the sandbox replaced a covered place that a run mounts over, or its parents."""
    for place in record.covered:
        misplaced = overlay.misplaced(os.fsencode(place.relative_to(record.workspace)))
        if misplaced is not None:
            path = record.workspace / os.fsdecode(misplaced)
            raise MountFailed(
                f"{quoted(place)} cannot be shown: sandbox '{record.name}' has replaced {quoted(path)}",
                hint=f"sandboxfs discard -s {record.name} {shlex.quote(str(path))}",
            )


def _hidden(locations: Locations, record: SandboxRecord) -> list[Path]:
    return [locations.state] if locations.state.is_relative_to(record.workspace) else []


@dataclass(frozen=True)
class Descriptors:
    """The daemon's share of descriptors for open *files* and for *directories* of the view.

    The rest is for the daemon itself: connections, copies, logs, reads in threads.
    """

    files: int
    directories: int

    @classmethod
    def of(cls, limit: int) -> "Descriptors":
        directories = min(MOST_OPEN, max(16, limit // 8))
        kept = min(1024, max(128, limit // 8))
        return cls(max(16, limit - directories - kept), directories)


def _raise_descriptor_limit() -> int:
    """Raise the limit of descriptors as far as the daemon may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft not in (resource.RLIM_INFINITY, wanted):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
    return wanted
