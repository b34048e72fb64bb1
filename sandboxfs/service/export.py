"""Export of a sandbox: its changes, what they were based on, and its policy, in one archive.

Mounted or not; nothing is changed. A file that changes while it is read is read anew a few times. An archive
that is written to a file appears when it is whole.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs import __version__
from sandboxfs.archive.collect import Changing, collect_archive, still_changing
from sandboxfs.archive.format import Manifest, Origin
from sandboxfs.archive.tar import ArchiveSink
from sandboxfs.archive.write import Changed, write_archive
from sandboxfs.commit.records import Records
from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.syscalls import RENAME_NOREPLACE
from sandboxfs.paths import quoted
from sandboxfs.service.events import ByteProgress, CallerContext, Events
from sandboxfs.service.review_session import free_hint, held_for_review
from sandboxfs.service.select import chosen_sandbox
from sandboxfs.service.workspace import user_path
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.store import SandboxRecord, Store, dump_settings
from sandboxfs.upper.sandbox_layers import LayerPaths, Layers, masked_paths, open_layers

_ATTEMPTS = 3


@dataclass(frozen=True)
class ExportRequest:
    """Which sandbox goes where: into *file*, as a person typed it, or to the descriptor *stream*.

    *force* replaces the file. *allow_changing* takes files that never stand still as they happen to be.
    """

    sandbox: str | None = None
    file: str | None = None
    stream: int | None = None
    force: bool = False
    allow_changing: bool = False


@dataclass(frozen=True)
class ExportResult:
    """The archive that was written, of *written* bytes; *devices* are left out of it."""

    name: str
    file: Path | None
    written: int
    entries: int
    files: int
    devices: tuple[bytes, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "file": None if self.file is None else str(self.file),
            "bytes": self.written,
            "entries": self.entries,
            "files": self.files,
            "devices": [os.fsdecode(path) for path in self.devices],
        }


def export(request: ExportRequest, caller: CallerContext, events: Events) -> ExportResult:
    """Write an archive of a sandbox."""
    store, record = chosen_sandbox(request.sandbox, caller, events, changing=False)
    target = None if request.file is None else _Target(store, request.file, caller, force=request.force)
    exporter = _Exporter(store, record, allow_changing=request.allow_changing)
    progress = ByteProgress(events, "reading")
    try:
        if target is not None:
            exporter.to_file(target, progress)
        elif request.stream is not None:
            exporter.to_stream(request.stream, progress)
        else:
            raise UsageError("neither a file nor a stream is named")
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = None if target is None else target.free_hint(error)
        raise UsageError(f"cannot export sandbox '{record.name}': {error.strerror}", hint=hint) from error
    manifest = exporter.manifest
    return ExportResult(
        record.name,
        None if target is None else target.path,
        exporter.written,
        manifest.changes.count,
        manifest.files,
        exporter.left_out,
    )


class _Target:
    """The file to write, which appears when it is whole."""

    def __init__(self, store: Store, given: str, caller: CallerContext, *, force: bool) -> None:
        if not given or "\0" in given:
            raise UsageError("the file's name is empty" if not given else f"bad file name {quoted(given)}")
        table = MountTable.read()
        path = user_path(given, caller.directory)
        self.path = table.resolve(path.parent) / path.name
        self._state = store.locations.state
        self.force = force
        self.gzip = path.name.endswith((".gz", ".tgz"))
        self._refuse_places(store, table)
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        if not stat.S_ISREG(found.st_mode):
            raise self._unusable("it exists and is no plain file")
        if not force:
            raise self._exists()

    def free_hint(self, error: OSError) -> str | None:
        """Say what gives room back for this file, where it is on the disk of the state directory."""
        try:
            beside = self.path.parent.stat().st_dev == self._state.stat().st_dev
        except OSError:
            return None
        return free_hint(error) if beside else None

    def _refuse_places(self, store: Store, table: MountTable) -> None:
        mounts = [mount for place in self.path.parents if (mount := table.at(place)) is not None]
        if mounts and mounts[0].ours:
            raise self._unusable("it would be in the view of a sandbox", "choose a place outside")
        if self.path.is_relative_to(store.locations.sandboxes):
            raise self._unusable("it is where sandboxes are kept")

    def _unusable(self, why: str, hint: str | None = None) -> UsageError:
        return UsageError(f"cannot export to {quoted(self.path)}: {why}", hint=hint)

    def _exists(self) -> UsageError:
        return self._unusable("it exists already", "replace it with --force")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A new file that takes the target's name at the end of the block, unless that failed."""
        name = os.fsencode(self.path.name)
        staged = b".%s.sandboxfs-%d" % (name[:200], os.getpid())
        try:
            parent = HostDir.at(self.path.parent)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        with parent:
            try:
                fd = parent.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            except OSError as error:
                raise self._unusable(error.strerror or str(error), self.free_hint(error)) from error
            try:
                try:
                    yield fd
                    os.fsync(fd)
                finally:
                    os.close(fd)
                parent.rename(staged, parent, name, 0 if self.force else RENAME_NOREPLACE)
            except BaseException as error:
                parent.unlink(staged)
                if isinstance(error, FileExistsError):
                    raise self._exists() from error
                raise


class _Exporter:
    """One export: what it found and wrote."""

    manifest: Manifest
    written: int = 0
    left_out: tuple[bytes, ...] = ()

    def __init__(self, store: Store, record: SandboxRecord, *, allow_changing: bool) -> None:
        self._store = store
        self._record = record
        self._changing = Changing(allow_changing)

    def to_file(self, target: _Target, progress: ByteProgress) -> None:
        """Write the archive, anew when a file changed meanwhile."""
        with self._layers() as layers, target.opened() as fd:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._write(layers, fd, gzip=target.gzip, progress=progress)
                    return
                except Changed as changed:
                    if attempt == _ATTEMPTS:
                        raise still_changing(changed.path) from changed
                    self._changing.known.add(changed.path)
                    os.ftruncate(fd, 0)
                    os.lseek(fd, 0, os.SEEK_SET)

    def to_stream(self, fd: int, progress: ByteProgress) -> None:
        """Write the archive once: what is written cannot be taken back."""
        with self._layers() as layers:
            try:
                self._write(layers, fd, gzip=False, progress=progress)
            except Changed as changed:
                # What is written is written; whoever reads it sees that its end is missing.
                raise still_changing(changed.path) from changed

    def _write(self, layers: Layers, fd: int, *, gzip: bool, progress: ByteProgress) -> None:
        progress.phase("reading")
        found = collect_archive(layers, self._changing, progress.advance)
        try:
            with open(fd, "wb", closefd=False) as out:
                sink = ArchiveSink(out.write, gzip=gzip)
                progress.phase("writing", sum(entry.size for entry in found.entries))
                self.manifest = write_archive(sink, self._origin(layers), layers, found, progress.advance)
            self.written = sink.written
            self.left_out = tuple(found.left_out)
        finally:
            found.close()

    def _origin(self, layers: Layers) -> Origin:
        record = self._record
        root = layers.workspace.stat(b"")
        policy = dump_settings(record.settings)["policy"]
        return Origin(
            name=record.name,
            workspace=os.fsencode(record.workspace),
            created=record.created.astimezone(UTC),
            exported=datetime.now(UTC).replace(microsecond=0),
            version=__version__,
            owner=(os.geteuid(), os.getegid()) if root is None else (root.st_uid, root.st_gid),
            policy=policy if isinstance(policy, dict) else {},
        )

    @contextmanager
    def _layers(self) -> Iterator[Layers]:
        places = self._store.places(self._record.name)
        workspace = self._record.workspace
        paths = LayerPaths(
            [workspace],
            places.upper,
            places.index,
            places.baseline,
            masked=_masked(self._store, workspace),
            covered=masked_paths(workspace, self._record.covered),
        )
        with held_for_review(places), ExitStack() as stack:
            self._refuse_unfinished(places)
            try:
                layers = stack.enter_context(open_layers(paths))
            except OSError as error:
                raise UsageError(f"cannot read {quoted(error.filename)}: {error.strerror}") from error
            yield layers

    def _refuse_unfinished(self, places: SandboxPlaces) -> None:
        """Half of an interrupted commit may have left the sandbox already."""
        with HostDir.at(places.home) as home:
            unfinished = Records(home).unfinished()
        if unfinished is not None:
            raise SandboxBusy(
                f"commit or discard {unfinished.number} of sandbox '{self._record.name}' was interrupted",
                hint="the next commit, discard or undo finishes it or takes it back; then export again",
            )


def _masked(store: Store, workspace: Path) -> frozenset[bytes]:
    """The paths in the workspace that are never asked for: mounts of ours, and the state directory."""
    places = [mount.mountpoint for mount in MountTable.read().below(workspace) if mount.ours]
    if store.locations.state.is_relative_to(workspace):
        places.append(store.locations.state)
    return frozenset(os.fsencode(place.relative_to(workspace)) for place in places)
