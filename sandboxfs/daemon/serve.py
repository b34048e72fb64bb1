"""What does the daemon do from its first to its last moment?

It serves one sandbox, whose lock it holds, until the view is unmounted or a signal asks it to end. What was
staged by an earlier daemon that died is removed first; the mountpoint that sandboxfs made itself is removed
last.
"""

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from sandboxfs.daemon.printing import DenialPrinter
from sandboxfs.daemon.session import Session
from sandboxfs.daemon.watch import watch_mounts
from sandboxfs.fuse.session import serve
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.state.locations import Locations
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.tree import empty_directory

log = logging.getLogger(__name__)

_DESCRIPTORS = 65536
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_sandbox(
    locations: Locations, record: SandboxRecord, ready: Callable[[], None], *, foreground: bool
) -> None:
    """Mount and serve the sandbox of *record*; return when it is unmounted."""
    # The overlay makes files with exactly the modes that callers ask for.
    os.umask(0)
    _raise_descriptor_limit()
    places = locations.sandbox(record.name)
    empty_directory(places.work)
    overlay = Overlay(
        OverlayPaths(lowers=[record.workspace], upper=places.upper, work=places.work, index=places.index),
        hidden=_hidden(locations, record),
        sealed=[record.mountpoint],
    )
    session = Session(locations, record, overlay)
    printer = DenialPrinter(sys.stderr)
    if foreground:
        session.journal.told.append(printer)
    # What was made until now lives as long as the daemon: the collector need not look at it again and again.
    gc.freeze()
    try:
        trio.run(_serve_until_told, session, record, ready)
    finally:
        session.close()
        printer.finish()
        if record.own_mountpoint:
            # Not when another mount took the place meanwhile, or something was put there.
            with suppress(OSError):
                record.mountpoint.rmdir()


async def _serve_until_told(session: Session, record: SandboxRecord, ready: Callable[[], None]) -> None:
    failure: Exception | None = None
    # Listening starts before mounting: a signal must never leave a mount behind.
    with trio.open_signal_receiver(*_ENDING) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            nursery.start_soon(
                watch_mounts, record.workspace, record.mountpoint, session.overlay.seal_foreign
            )
            try:
                await nursery.start(session.control.serve, session.address)
                await serve(
                    session.filesystem,
                    str(record.mountpoint),
                    read_only=record.read_only,
                    allow_other=record.allow_other,
                    ready=partial(_begin, session, ready),
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


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        log.info("told to end by %s", signal.Signals(number).name)
        scope.cancel()


def _hidden(locations: Locations, record: SandboxRecord) -> list[Path]:
    return [locations.state] if locations.state.is_relative_to(record.workspace) else []


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
