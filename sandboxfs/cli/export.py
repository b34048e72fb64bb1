"""`sandboxfs export`: one file that holds the changes of a sandbox, to be reviewed on another machine."""

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs import __version__
from sandboxfs.changes.archive_collect import Changing, collect, still_changing
from sandboxfs.changes.archive_export import Changed, write_archive
from sandboxfs.changes.archive_manifest import Manifest, Origin
from sandboxfs.changes.archive_stream import Sink
from sandboxfs.changes.layers import LayerPaths, Layers, open_layers
from sandboxfs.changes.records import Records
from sandboxfs.cli import output
from sandboxfs.cli.holding import held_for_review
from sandboxfs.cli.live import selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import user_path
from sandboxfs.cli.progress import Progress
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.syscalls import RENAME_NOREPLACE
from sandboxfs.paths import quoted
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.settings import dump_settings
from sandboxfs.state.store import Store

DESCRIPTION = """\
Write everything that the sandbox changed, what it was based on, and the policy, into one
archive. 'sandboxfs import' makes a sandbox of it on any machine that has a copy of the
workspace; there it can be reviewed and committed. Mounted or not; nothing is changed.

FILE is a tar, gzipped if its name ends in .gz or .tgz; '-' is stdout. Only its owner can
read it."""

EXAMPLES = [
    "sandboxfs export changes.tgz",
    "sandboxfs export -s app - | ssh other sandboxfs import - ~/projects/app",
]

_ATTEMPTS = 3


class Arguments(argparse.Namespace):
    file: str
    sandbox: str | None
    force: bool
    allow_changing: bool
    json: bool


def parser() -> Parser:
    made = verb_parser("export", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    made.add_argument("file", metavar="FILE", help="the archive to write; '-': stdout")
    add_sandbox_option(made)
    made.add_argument("--force", action="store_true", help="replace FILE if it exists")
    made.add_argument(
        "--allow-changing", action="store_true", help="take files that never stand still as they happen to be"
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store, sandbox = selected(arguments.sandbox)
    to_stdout = arguments.file == "-"
    if to_stdout and arguments.json:
        raise UsageError("the archive and --json cannot both go to stdout")
    target = None if to_stdout else _Target(store, arguments.file, force=arguments.force)
    exporter = _Exporter(store, sandbox.record, allow_changing=arguments.allow_changing)
    try:
        with Progress("reading") as progress:
            if target is None:
                exporter.to_stdout(progress)
            else:
                exporter.to_file(target, progress)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot export sandbox '{sandbox.name}': {error.strerror}") from error
    output.warnings(
        f"{quoted(path)} is a device and is left out" for path in exporter.left_out if not arguments.json
    )
    _tell(sandbox.record, exporter, target, as_json=arguments.json)
    return 0


def _tell(record: SandboxRecord, exporter: "_Exporter", target: "_Target | None", *, as_json: bool) -> None:
    manifest = exporter.manifest
    if as_json:
        output.document(
            {
                "name": record.name,
                "file": None if target is None else str(target.path),
                "bytes": exporter.written,
                "entries": manifest.changes.count,
                "files": manifest.files,
                "left_out": [os.fsdecode(path) for path in exporter.left_out],
            }
        )
        return
    place = "stdout" if target is None else quoted(target.path)
    output.note(
        f"exported sandbox '{record.name}' to {place}: {manifest.files} files and "
        f"{manifest.changes.count - manifest.files} other entries, {output.human_size(exporter.written)}"
    )


class _Target:
    """The file to write, which appears when it is whole."""

    def __init__(self, store: Store, given: str, *, force: bool) -> None:
        if not given or "\0" in given:
            raise UsageError("the file's name is empty" if not given else f"bad file name {quoted(given)}")
        table = MountTable.read()
        path = user_path(given)
        self.path = table.resolve(path.parent) / path.name
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
                raise self._unusable(error.strerror or str(error)) from error
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

    def to_file(self, target: _Target, progress: Progress) -> None:
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

    def to_stdout(self, progress: Progress) -> None:
        if sys.stdout.isatty():
            raise UsageError("the archive would go to the terminal", hint="name a file, or use a pipe")
        with self._layers() as layers:
            try:
                self._write(layers, sys.stdout.fileno(), gzip=False, progress=progress)
            except Changed as changed:
                # What is written is written; whoever reads it sees that its end is missing.
                raise still_changing(changed.path) from changed

    def _write(self, layers: Layers, fd: int, *, gzip: bool, progress: Progress) -> None:
        progress.phase("reading")
        found = collect(layers, self._changing, progress.advance)
        try:
            with open(fd, "wb", closefd=False) as out:
                sink = Sink(out.write, gzip=gzip)
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
            [workspace], places.upper, places.index, places.baseline, masked=_masked(self._store, workspace)
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
