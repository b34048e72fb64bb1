"""What does the daemon do from its first to its last moment?

It serves one sandbox, whose lock it holds, until the view is unmounted, a signal asks it to end, or nobody
holds its lifeline any more. What was staged by an earlier daemon that died is removed first; the mountpoint
that sandboxfs made itself is removed last.
"""

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from sandboxfs.control.lifeline import lifeline_path, nobody_holds, remove_lifeline
from sandboxfs.daemon.printing import DenialPrinter
from sandboxfs.daemon.session import Session
from sandboxfs.daemon.watch import watch_mounts
from sandboxfs.fuse.kernel import drops_what_is_written_over
from sandboxfs.fuse.session import serve
from sandboxfs.layers.inotify import allowance
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.paths import make_directories
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.tree import empty_directory

log = logging.getLogger(__name__)

_DESCRIPTORS = 65536
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
    _raise_descriptor_limit()
    places = locations.sandbox(record.name)
    try:
        if record.own_mountpoint:
            make_directories(record.mountpoint)
        _serve(locations, record, ready, foreground=foreground, lifeline=_Lifeline.of(lifeline, places))
    finally:
        if lifeline is not None:
            remove_lifeline(lifeline_path(places))
        if record.own_mountpoint:
            # Not when another mount took the place meanwhile, or something was put there.
            with suppress(OSError):
                record.mountpoint.rmdir()


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
    # A sandbox that an earlier version made has none.
    make_directories(places.baseline)
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
        watches=allowance(),
    )
    overlay.beside.allowed = True
    if drops_what_is_written_over():
        overlay.let_writes_go_around_pages()
    session = Session(locations, record, overlay)
    printer = DenialPrinter(sys.stderr)
    if foreground:
        session.journal.told.append(printer)
    # What was made until now lives as long as the daemon: the collector need not look at it again and again.
    gc.freeze()
    gc.enable()
    try:
        trio.run(_serve_until_told, session, record, ready, lifeline)
    finally:
        session.close()
        printer.finish()


@dataclass(frozen=True)
class _Lifeline:
    """What the runs hold that the daemon serves; *path* is its name."""

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
    # Listening starts before mounting: a signal must never leave a mount behind.
    with trio.open_signal_receiver(*_ENDING) as signals:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await session.follower.finish()
                nursery.cancel_scope.cancel()

            nursery.start_soon(_end_on_signal, signals, end)
            if lifeline is not None:
                nursery.start_soon(lifeline.end_when_let_go, end)
            nursery.start_soon(
                watch_mounts,
                record.workspace,
                record.mountpoint,
                session.overlay.seal_foreign,
                session.overlay.suspect_all,
            )
            nursery.start_soon(session.follower.run)
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
                # Carried out of the nursery by hand: it would come out wrapped in a group.
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _begin(session: Session, ready: Callable[[], None]) -> None:
    session.begin()
    ready()


async def _end_on_signal(signals: AsyncIterator[int], end: End) -> None:
    async for number in signals:
        log.info("told to end by %s", signal.Signals(number).name)
        await end()


def _hidden(locations: Locations, record: SandboxRecord) -> list[Path]:
    return [locations.state] if locations.state.is_relative_to(record.workspace) else []


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
