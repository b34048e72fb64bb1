"""What does the daemon do from its first to its last moment?

It serves one sandbox, whose lock it holds, until the view is unmounted or a signal asks it to end. What was
staged by an earlier daemon that died is removed first; the mountpoint that sandboxfs made itself is removed
last.
"""

import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import trio

from sandboxfs.daemon.watch import watch_mounts
from sandboxfs.fuse.session import serve
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.state.locations import Locations
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.tree import empty_directory

log = logging.getLogger(__name__)

_DESCRIPTORS = 65536
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_sandbox(locations: Locations, record: SandboxRecord, ready: Callable[[], None]) -> None:
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
    try:
        trio.run(_serve_until_told, overlay, record, ready)
    finally:
        overlay.close()
        if record.own_mountpoint:
            # Not when another mount took the place meanwhile, or something was put there.
            with suppress(OSError):
                record.mountpoint.rmdir()


async def _serve_until_told(overlay: Overlay, record: SandboxRecord, ready: Callable[[], None]) -> None:
    failure: Exception | None = None
    # Listening starts before mounting: a signal must never leave a mount behind.
    with trio.open_signal_receiver(*_ENDING) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            nursery.start_soon(watch_mounts, record.workspace, record.mountpoint, overlay.seal_foreign)
            try:
                await serve(
                    overlay,
                    str(record.mountpoint),
                    read_only=record.read_only,
                    allow_other=record.allow_other,
                    ready=ready,
                )
            except Exception as error:
                # Carried out of the nursery by hand: it would come out wrapped in a group.
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


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
