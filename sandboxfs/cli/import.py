"""`sandboxfs import`: a sandbox with the changes that another one was exported with."""

# ruff: noqa: N999 - called like its verb, as all of them; nobody but the dispatcher imports it.

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.changes.archive_adapt import Adapter, Look
from sandboxfs.changes.archive_import import Archive, Report
from sandboxfs.changes.archive_manifest import Manifest
from sandboxfs.changes.archive_stream import BadArchive, Source
from sandboxfs.changes.archive_unpack import Unpacker
from sandboxfs.changes.tree import Tree
from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.places import user_path
from sandboxfs.cli.progress import Progress
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import MountFailed, SandboxBusy, UsageError
from sandboxfs.layers import probe
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.layers.staging import Staging
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.policy.pattern import PatternError, parse
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.settings import Settings, dump_settings, parse_settings
from sandboxfs.state.store import Store, check_name, name_from
from sandboxfs.state.tree import remove_tree

DESCRIPTION = """\
Make a new sandbox of an archive that 'sandboxfs export' wrote, over a copy of the
workspace. Neither the workspace nor any other sandbox is touched; look at the changes
with 'sandboxfs diff', then commit or discard them. Where the copy differs from what the
changes were based on, that is a conflict.

WORKSPACE is by default where the archive says it was. The name of the new sandbox is
printed."""

EXAMPLES = [
    "sandboxfs import changes.tgz",
    "sandboxfs import changes.tgz ~/projects/app --name review",
    'sandboxfs diff -s "$(sandboxfs import changes.tgz)"',
]

DEFAULT_LIMIT = 8 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Arguments(argparse.Namespace):
    file: str
    workspace: str | None
    name: str | None
    max_size: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("import", DESCRIPTION, EXAMPLES, [SandboxBusy, MountFailed])
    made.add_argument("file", metavar="FILE", help="the archive; '-': stdin")
    made.add_argument("workspace", nargs="?", metavar="WORKSPACE", help="the directory to review it against")
    made.add_argument(
        "--name", metavar="NAME", help="the new sandbox's name; default: like the exported one's"
    )
    made.add_argument(
        "--max-size",
        metavar="SIZE",
        help="how much it may unpack to, such as 500M or 20G; default: 8G, and a hundred times its size",
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    if arguments.name is not None:
        check_name(arguments.name)
        if store.exists(arguments.name):
            raise UsageError(f"there is a sandbox '{arguments.name}' already", hint="choose another --name")
    limit = DEFAULT_LIMIT if arguments.max_size is None else parse_size(arguments.max_size)
    shown = "the archive" if arguments.file == "-" else quoted(arguments.file)
    try:
        with _opened(arguments.file) as file, Progress("unpacking") as progress:
            source = Source(file, any_rate=arguments.max_size is not None)
            archive = Archive(source, limit=limit)
            progress.phase("unpacking", archive.manifest.size)
            record = _record(store, archive.manifest, arguments)
            report = _Arrival(store, record).unpack(archive, progress)
    except BadArchive as error:
        raise UsageError(f"cannot import {shown}: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise UsageError(f"cannot import {shown}: {error.strerror}") from error
    _tell(record, archive.manifest, report, as_json=arguments.json)
    return 0


def parse_size(text: str) -> int:
    """Read a number of bytes, with a unit or without."""
    matched = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not matched:
        raise UsageError(f"bad size {quoted(text)}", hint="give a number of bytes such as 500M or 20G")
    return int(matched[1]) * _UNITS[matched[2].upper()]


@contextmanager
def _opened(given: str) -> Iterator[io.RawIOBase]:
    if given == "-":
        if sys.stdin.isatty():
            raise UsageError("the archive would be read from the terminal", hint="name a file, or use a pipe")
        with open(os.dup(sys.stdin.fileno()), "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            yield file
        return
    if not given or "\0" in given:
        raise UsageError("the file's name is empty" if not given else f"bad file name {quoted(given)}")
    with user_path(given).open("rb", buffering=0) as file:
        yield file


# What the sandbox will be


def _record(store: Store, manifest: Manifest, arguments: Arguments) -> SandboxRecord:
    workspace = _workspace(store, manifest, arguments.workspace)
    name = arguments.name or store.free_name(name_from(manifest.origin.name))
    return SandboxRecord(
        name=name,
        workspace=workspace,
        mountpoint=store.locations.default_mountpoint(name),
        created=datetime.now(UTC).replace(microsecond=0),
        own_mountpoint=True,
        settings=_settings(manifest),
    )


def _workspace(store: Store, manifest: Manifest, given: str | None) -> Path:
    if given == "":
        raise UsageError("the workspace is empty")
    wanted = Path(os.fsdecode(manifest.origin.workspace)) if given is None else user_path(given)
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


def _settings(manifest: Manifest) -> Settings:
    """The policy as it was recorded; the next mount puts together its own."""
    document = dump_settings(Settings()) | {"policy": manifest.origin.policy}
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

    def unpack(self, archive: Archive, progress: Progress) -> Report:
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

    def _unpack(self, archive: Archive, hidden: Path, progress: Progress) -> Report:
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
        closing(Tree(HostDir.at(workspace))) as copy,
    ):
        adapter = Adapter(
            _looking(copy, workspace), archive.manifest.origin.owner, may_give_away=os.geteuid() == 0
        )
        whiteouts = Whiteouts(devices=probe.device_whiteouts(places.work))
        unpacker = Unpacker(upper, Index(index, Staging(work)), whiteouts)
        try:
            return archive.unpack(unpacker, baseline, adapter, advance)
        finally:
            unpacker.close()


def _looking(copy: Tree, workspace: Path) -> Look:
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


def _tell(record: SandboxRecord, manifest: Manifest, report: Report, *, as_json: bool) -> None:
    origin = manifest.origin
    if as_json:
        output.document(
            {
                "name": record.name,
                "workspace": str(record.workspace),
                "entries": report.entries,
                "files": manifest.files,
                "special": [os.fsdecode(path) for path in report.special],
                "origin": {
                    "name": origin.name,
                    "workspace": os.fsdecode(origin.workspace),
                    "exported": origin.exported.isoformat(),
                    "version": origin.version,
                },
            }
        )
        return
    if report.special:
        first, more = quoted(report.special[0]), len(report.special) - 1
        others = f" and {more} more" if more else ""
        output.warnings([f"{first}{others} would run with other rights: commit refuses that by default"])
    output.note(f"made sandbox '{record.name}' of {quoted(record.workspace)}, with {manifest.files} files")
    output.note(f"hint: 'sandboxfs diff -s {record.name}' shows what it changed")
    output.data(record.name)
