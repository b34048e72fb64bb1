"""Import of an archive: a new sandbox with the changes that another one was exported with.

The sandbox is made out of sight, and moved to its name when it is whole. Neither the workspace nor any other
sandbox is touched. The archive may come from anybody: how much it may unpack to is limited.
"""

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.archive.format import Manifest
from sandboxfs.archive.read import Archive, HostMapping, Look, Report, Unpacker
from sandboxfs.archive.tar import ArchiveSource, BadArchive
from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import MountFailed, SandboxBusy, UsageError
from sandboxfs.hostfs import probe
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.policy.patterns import PatternError, parse
from sandboxfs.service.events import ByteProgress, CallerContext, Events
from sandboxfs.service.review_session import free_hint
from sandboxfs.service.workspace import identity_for, user_path
from sandboxfs.state.disk import remove_tree
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.store import (
    PolicySettings,
    SandboxRecord,
    Store,
    check_name,
    dump_settings,
    name_from,
    parse_settings,
)
from sandboxfs.upper.marks import Index, Staging, Whiteouts

DEFAULT_LIMIT = 8 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class ImportRequest:
    """Which archive becomes a sandbox, of which workspace, under which name.

    *file* and *workspace* are as a person typed them; *stream* is a descriptor to read the archive from
    instead, which stays open. *max_size* is how much the archive may unpack to, such as `500M`.
    """

    file: str | None = None
    stream: int | None = None
    workspace: str | None = None
    name: str | None = None
    max_size: str | None = None


@dataclass(frozen=True)
class ImportResult:
    """The sandbox that was made; *special* are entries that would run with other rights."""

    name: str
    workspace: Path
    entries: int
    files: int
    special: tuple[bytes, ...]
    origin_name: str
    origin_workspace: bytes
    exported: datetime
    version: str

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "workspace": str(self.workspace),
            "entries": self.entries,
            "files": self.files,
            "special": [os.fsdecode(path) for path in self.special],
            "origin": {
                "name": self.origin_name,
                "workspace": os.fsdecode(self.origin_workspace),
                "exported": self.exported.isoformat(),
                "version": self.version,
            },
        }


def import_archive(request: ImportRequest, caller: CallerContext, events: Events) -> ImportResult:
    """Make a sandbox of an archive."""
    store = Store(Locations.from_environment(caller.environment))
    if request.name is not None:
        check_name(request.name)
        if store.exists(request.name):
            raise UsageError(f"there is a sandbox '{request.name}' already", hint="choose another --name")
    limit = DEFAULT_LIMIT if request.max_size is None else parse_size(request.max_size)
    shown = "the archive" if request.file is None else quoted(request.file)
    progress = ByteProgress(events, "unpacking")
    try:
        with _opened(request, caller) as file:
            source = ArchiveSource(file, any_rate=request.max_size is not None)
            archive = Archive(source, limit=limit)
            progress.phase("unpacking", archive.manifest.size)
            record = _record(store, archive.manifest, request, caller)
            report = _Arrival(store, record).unpack(archive, progress)
    except BadArchive as error:
        raise UsageError(f"cannot import {shown}: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise UsageError(f"cannot import {shown}: {error.strerror}", hint=free_hint(error)) from error
    return _result(record, archive.manifest, report)


def _result(record: SandboxRecord, manifest: Manifest, report: Report) -> ImportResult:
    origin = manifest.origin
    return ImportResult(
        record.name,
        record.workspace,
        report.entries,
        manifest.files,
        tuple(report.special),
        origin.name,
        origin.workspace,
        origin.exported,
        origin.version,
    )


def parse_size(text: str) -> int:
    """Read a number of bytes, with a unit or without."""
    matched = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not matched:
        raise UsageError(f"bad size {quoted(text)}", hint="give a number of bytes such as 500M or 20G")
    return int(matched[1]) * _UNITS[matched[2].upper()]


@contextmanager
def _opened(request: ImportRequest, caller: CallerContext) -> Iterator[io.RawIOBase]:
    if request.stream is not None:
        with open(os.dup(request.stream), "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            yield file
        return
    given = request.file
    if not given or "\0" in given:
        raise UsageError(f"bad file name {quoted(given)}" if given else "the file's name is empty")
    with user_path(given, caller.directory).open("rb", buffering=0) as file:
        yield file


# What the sandbox will be


def _record(store: Store, manifest: Manifest, request: ImportRequest, caller: CallerContext) -> SandboxRecord:
    workspace = _workspace(store, manifest, request.workspace, caller)
    name = request.name or store.free_name(name_from(manifest.origin.name))
    return SandboxRecord(
        name=name,
        workspace=workspace,
        mountpoint=store.locations.default_mountpoint(name),
        created=datetime.now(UTC).replace(microsecond=0),
        own_mountpoint=True,
        identity=identity_for(workspace, None, None, replaced=False),
        settings=_settings(manifest),
    )


def _workspace(store: Store, manifest: Manifest, given: str | None, caller: CallerContext) -> Path:
    if given == "":
        raise UsageError("the workspace is empty")
    if given is None:
        wanted = Path(os.fsdecode(manifest.origin.workspace))
    else:
        wanted = user_path(given, caller.directory)
    hint = "name the copy of it: 'sandboxfs import FILE WORKSPACE'" if given is None else None
    try:
        path = MountTable.read().resolve(wanted)
        if not path.is_dir():
            raise UsageError(f"cannot use workspace {quoted(wanted)}: no such directory", hint=hint)
        if not os.access(path, os.R_OK | os.X_OK):
            raise UsageError(f"cannot use workspace {quoted(wanted)}: permission denied", hint=hint)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use workspace {quoted(wanted)}: {error}", hint=hint) from error
    if path == store.locations.state or path.is_relative_to(store.locations.sandboxes):
        raise UsageError(f"cannot use workspace {quoted(path)}: it is where sandboxes are kept")
    return path


def _settings(manifest: Manifest) -> PolicySettings:
    """The policy as it was recorded; the next mount puts together its own."""
    document = dump_settings(PolicySettings()) | {"policy": manifest.origin.policy}
    try:
        settings = parse_settings(document, "policy")
        for rule in settings.policy.rules:
            parse(rule.pattern)
            if rule.place is not None:
                parse(rule.place)
    except (UsageError, PatternError, ValueError) as error:
        raise BadArchive(f"its policy cannot be used: {error}") from error
    return settings


# Making it


@dataclass(frozen=True)
class _Arrival:
    """A sandbox on its way: made out of sight, and moved to its name when it is whole."""

    store: Store
    record: SandboxRecord

    def unpack(self, archive: Archive, progress: ByteProgress) -> Report:
        sandboxes = self.store.locations.sandboxes
        made = make_directories(sandboxes)
        # Looks like any sandbox that is being made: what a crash leaves is swept in time.
        hidden = sandboxes / f".new-import-{os.getpid()}"
        try:
            report = self._unpack(archive, hidden, progress)
        except BaseException:
            remove_tree(hidden)
            remove_directories(made)
            raise
        remove_tree(hidden)
        return report

    def _unpack(self, archive: Archive, hidden: Path, progress: ByteProgress) -> Report:
        own = Locations(hidden, self.store.locations.runtime, self.store.locations.config)
        lock = Store(own).create(self.record)
        try:
            places = own.sandbox(self.record.name)
            if not probe.user_xattrs(places.work):
                raise MountFailed(
                    f"the filesystem of the state directory {quoted(self.store.locations.state)} "
                    "has no user extended attributes"
                )

            def advance(count: int) -> None:
                progress.advance(count)
                # Shows whoever sweeps up after crashes that somebody is at work.
                os.utime(hidden)

            report = _fill(places, archive, self.record.workspace, advance)
            try:
                places.home.rename(self.store.places(self.record.name).home)
            except FileExistsError as error:
                raise SandboxBusy(f"there is a sandbox '{self.record.name}' by now") from error
        finally:
            lock.release()
        return report


def _fill(places: SandboxPlaces, archive: Archive, workspace: Path, advance: Callable[[int], None]) -> Report:
    with (
        HostDir.at(places.upper) as upper,
        HostDir.at(places.index) as index,
        HostDir.at(places.work) as work,
        HostDir.at(places.baseline) as baseline,
        closing(DirTree(HostDir.at(workspace))) as copy,
    ):
        adapter = HostMapping(
            _looking(copy, workspace), archive.manifest.origin.owner, may_give_away=os.geteuid() == 0
        )
        whiteouts = Whiteouts(devices=probe.device_whiteouts(places.work))
        unpacker = Unpacker(upper, Index(index, Staging(work)), whiteouts)
        try:
            return archive.unpack(unpacker, baseline, adapter, advance)
        finally:
            unpacker.close()


def _looking(copy: DirTree, workspace: Path) -> Look:
    """Look at the workspace, but not at mounts in it: whoever serves them may be hung."""
    mounts = [mount.mountpoint for mount in MountTable.read().below(workspace) if mount.ours]

    def look(path: bytes) -> os.stat_result | None:
        place = workspace / os.fsdecode(path)
        if any(place.is_relative_to(mount) for mount in mounts):
            return None
        try:
            return copy.stat(path)
        except OSError:
            return None

    return look
