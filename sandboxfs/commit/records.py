"""Commit records: what is kept of each commit, discard and undo.

Each record is a directory `commits/N`, numbered upwards: `record.json` says what was done, `journal` how far
it got, `pre/` holds the workspace's objects from before, `upper/` the sandbox's. The journal is lines of
JSON, each an object with one key; a last line without its end counts as never written.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from sandboxfs.codec import Check, decode, encode
from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import append, sync_directory, write_whole

FORMAT = 1
COMMIT, DISCARD, UNDO = "commit", "discard", "undo"

_DIRECTORY = b"commits"
_ABOUT = b"record.json"
_JOURNAL = b"journal"

Json = dict[str, object]


def _known_kind(kind: str) -> str:
    if kind not in (COMMIT, DISCARD, UNDO):
        raise ValueError("expected a commit, a discard or an undo")
    return kind


@dataclass(frozen=True)
class RecordSummary:
    """The subject of a record. *of* is the record that an undo took back; *changes* are paths and kinds."""

    kind: Annotated[str, Check(_known_kind)]
    created: str
    message: str | None = None
    of: int | None = None
    changes: tuple[tuple[bytes, str], ...] = ()

    @classmethod
    def now(
        cls,
        kind: str,
        changes: tuple[tuple[bytes, str], ...],
        message: str | None = None,
        of: int | None = None,
    ) -> "RecordSummary":
        created = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
        return cls(kind, created, message, of, changes)


@dataclass
class CommitRecord:
    """One record, open. `entries` are the journal's lines so far, first to last."""

    number: int
    directory: HostDir
    about: RecordSummary
    entries: list[Json] = field(default_factory=list)
    # The journal ends in half a line.
    torn: bool = False

    def write(self, key: str, value: object, *, sync: bool = True) -> None:
        """Add a line to the journal; with *sync* the line survives a crash of the machine."""
        line = json.dumps({key: value}, separators=(",", ":")).encode() + b"\n"
        append(self.directory, _JOURNAL, b"\n" * self.torn + line, sync=sync)
        self.torn = False
        self.entries.append({key: value})

    def last(self, key: str) -> object:
        """The newest value of *key* in the journal, None when there is none."""
        return next((entry[key] for entry in reversed(self.entries) if key in entry), None)

    def has(self, key: str) -> bool:
        return any(key in entry for entry in self.entries)

    @property
    def began_ns(self) -> int:
        """The time the record was made, before anything was changed, by the clock of its filesystem."""
        status = self.directory.stat(_ABOUT)
        return 0 if status is None else status.st_mtime_ns

    @property
    def is_applied(self) -> bool:
        """Whether the record can only go forward: all its changes are in the workspace."""
        return self.last("applied") is True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done about the record."""
        return self.has("done") or self.has("taken back")

    @property
    def stands(self) -> bool:
        """Whether the record's changes were done and not undone."""
        return self.has("done") and not self.has("undone") and self.about.kind != UNDO

    def folder(self, name: bytes) -> HostDir:
        """Open `pre` or `upper`."""
        return self.directory.child(name)

    def close(self) -> None:
        self.directory.close()

    def __enter__(self) -> "CommitRecord":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Records:
    """The records of one sandbox, in the directory *home*. Reading creates nothing."""

    def __init__(self, home: HostDir) -> None:
        self._home = home

    def numbers(self) -> list[int]:
        """The numbers of all records, oldest first, incomplete ones included."""
        try:
            with self._home.child(_DIRECTORY) as directory:
                return sorted(int(name) for name in directory.names() if name.isdigit())
        except FileNotFoundError:
            return []

    def open(self, number: int) -> CommitRecord | None:
        """Open the record *number*; None when there is none, or an incomplete one."""
        try:
            with self._home.child(_DIRECTORY) as commits:
                directory = commits.child(b"%d" % number)
        except FileNotFoundError:
            return None
        try:
            return CommitRecord(number, directory, _about(directory, number), *_entries(directory))
        except FileNotFoundError:
            directory.close()
            return None
        except BaseException:
            directory.close()
            raise

    def each(self) -> Iterator[CommitRecord]:
        """Open one record after the other, newest first; each is closed when the next is asked for."""
        for number in reversed(self.numbers()):
            record = self.open(number)
            if record is not None:
                with record:
                    yield record

    def unfinished(self) -> CommitRecord | None:
        """Open the record about which something is left to be done.

        Only the newest record can be unfinished: a new record is begun only after the earlier one has ended.
        """
        numbers = self.numbers()
        record = self.open(numbers[-1]) if numbers else None
        if record is not None and record.is_over:
            record.close()
            return None
        return record

    def new(self, about: RecordSummary) -> CommitRecord:
        """Start a record; only one process at a time may."""
        try:
            self._home.mkdir(_DIRECTORY, 0o700)
            sync_directory(self._home)
        except FileExistsError:
            pass
        with self._home.child(_DIRECTORY) as commits:
            number = max(self.numbers(), default=0) + 1
            commits.mkdir(b"%d" % number, 0o700)
            directory = commits.child(b"%d" % number)
            for name in (b"pre", b"upper"):
                directory.mkdir(name, 0o700)
            content = json.dumps({"format": FORMAT} | encode(about), separators=(",", ":")).encode() + b"\n"
            write_whole(directory, _ABOUT, content)
            sync_directory(commits)
        return CommitRecord(number, directory, about)

    def sweep(self) -> None:
        """Remove an incomplete record, which can only be the newest."""
        numbers = self.numbers()
        if not numbers:
            return
        with self._home.child(_DIRECTORY) as commits, commits.child(b"%d" % numbers[-1]) as newest:
            if newest.stat(_ABOUT) is None:
                commits.remove_tree(b"%d" % numbers[-1])

    def remove(self, record: CommitRecord) -> None:
        """Remove a record that came to nothing: everything it did is taken back."""
        record.close()
        with self._home.child(_DIRECTORY) as commits:
            commits.remove_tree(b"%d" % record.number)


def _about(directory: HostDir, number: int) -> RecordSummary:
    source = f"commits/{number}/record.json"
    try:
        found: object = json.loads(directory.read(_ABOUT))
        if isinstance(found, dict) and type(found.get("format")) is int and found.pop("format") == FORMAT:
            return decode(RecordSummary, found)
    except ValueError as error:
        raise UsageError(f"{source}: malformed record: {error}") from error
    raise UsageError(
        f"{source}: not a record of format {FORMAT}",
        hint="use the version of sandboxfs that wrote it",
    )


def _entries(directory: HostDir) -> tuple[list[Json], bool]:
    """The lines of the journal, and whether half a line follows, which counts as never written."""
    try:
        *lines, rest = directory.read(_JOURNAL).split(b"\n")
    except FileNotFoundError:
        return [], False
    entries: list[Json] = []
    for line in lines:
        try:
            found: object = json.loads(line)
        except ValueError:
            # Half a line, which the next process ended with a newline.
            continue
        if isinstance(found, dict):
            entries.append(found)
    return entries, bool(rest)
