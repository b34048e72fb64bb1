"""What is kept of each commit, discard and undo?

One directory `commits/N` each, numbered upwards: `record.json` says what it was, `journal` how far it got,
`pre/` holds what the workspace had before, `upper/` what the sandbox had. The journal is lines of JSON, each
an object with one key; a last line without its end was never written.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandboxfs.errors import UsageError
from sandboxfs.layers.durable import append, sync_directory, write_whole
from sandboxfs.layers.hostdir import HostDir

FORMAT = 1
COMMIT, DISCARD, UNDO = "commit", "discard", "undo"

_DIRECTORY = b"commits"
_ABOUT = b"record.json"
_JOURNAL = b"journal"

Json = dict[str, object]


@dataclass(frozen=True)
class About:
    """What a record is about. *of* is the record that an undo took back; *changes* are paths and kinds."""

    kind: str
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
    ) -> "About":
        created = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
        return cls(kind, created, message, of, changes)

    def as_json(self) -> Json:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "created": self.created,
            "message": self.message,
            "of": self.of,
            "changes": [[os.fsdecode(path), kind] for path, kind in self.changes],
        }


@dataclass
class Record:
    """One record, open. `entries` are the journal's lines so far, first to last."""

    number: int
    directory: HostDir
    about: About
    entries: list[Json] = field(default_factory=list)
    # The journal ends in half a line.
    torn: bool = False

    def write(self, key: str, value: object, *, sync: bool = True) -> None:
        """Add a line to the journal; with *sync* it is there after the machine stopped."""
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
    def is_applied(self) -> bool:
        """Whether it can only go forward: the workspace has all of it."""
        return self.last("applied") is True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done about it."""
        return self.has("done") or self.has("taken back")

    @property
    def stands(self) -> bool:
        """Whether it was done and not undone."""
        return self.has("done") and not self.has("undone") and self.about.kind != UNDO

    def folder(self, name: bytes) -> HostDir:
        """Open `pre` or `upper`."""
        return self.directory.child(name)

    def close(self) -> None:
        self.directory.close()

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Records:
    """The records of one sandbox, whose directory is *home*. Looking creates nothing."""

    def __init__(self, home: HostDir) -> None:
        self._home = home

    def numbers(self) -> list[int]:
        """The numbers of all records, oldest first, also of those that never came to be."""
        try:
            with self._home.child(_DIRECTORY) as directory:
                return sorted(int(name) for name in directory.names() if name.isdigit())
        except FileNotFoundError:
            return []

    def open(self, number: int) -> Record | None:
        """Open the record *number*; None when there is none, or it never came to be."""
        try:
            with self._home.child(_DIRECTORY) as commits:
                directory = commits.child(b"%d" % number)
        except FileNotFoundError:
            return None
        try:
            return Record(number, directory, _about(directory, number), *_entries(directory))
        except FileNotFoundError:
            directory.close()
            return None
        except BaseException:
            directory.close()
            raise

    def each(self) -> Iterator[Record]:
        """Open one record after the other, newest first; each is closed when the next is asked for."""
        for number in reversed(self.numbers()):
            record = self.open(number)
            if record is not None:
                with record:
                    yield record

    def unfinished(self) -> Record | None:
        """Open the record about which something is left to be done.

        That can only be the newest: whoever starts another one ends it first.
        """
        numbers = self.numbers()
        record = self.open(numbers[-1]) if numbers else None
        if record is not None and record.is_over:
            record.close()
            return None
        return record

    def new(self, about: About) -> Record:
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
            content = json.dumps(about.as_json(), separators=(",", ":")).encode() + b"\n"
            write_whole(directory, _ABOUT, content)
            sync_directory(commits)
        return Record(number, directory, about)

    def sweep(self) -> None:
        """Remove what is left of a record that never came to be, which can only be the newest."""
        numbers = self.numbers()
        if not numbers:
            return
        with self._home.child(_DIRECTORY) as commits, commits.child(b"%d" % numbers[-1]) as newest:
            if newest.stat(_ABOUT) is None:
                commits.remove_tree(b"%d" % numbers[-1])

    def remove(self, record: Record) -> None:
        """Remove a record that came to nothing: whatever it did is taken back."""
        record.close()
        with self._home.child(_DIRECTORY) as commits:
            commits.remove_tree(b"%d" % record.number)


def _about(directory: HostDir, number: int) -> About:
    source = f"commits/{number}/record.json"
    try:
        found: object = json.loads(directory.read(_ABOUT))
    except ValueError as error:
        raise UsageError(f"{source}: malformed record: {error}") from error
    match found:
        case {
            "format": int(version),
            "kind": str(kind),
            "created": str(created),
            "message": message,
            "of": of,
            "changes": [*changes],
        } if version == FORMAT and kind in (COMMIT, DISCARD, UNDO):
            return About(
                kind,
                created,
                message if isinstance(message, str) else None,
                of if isinstance(of, int) else None,
                tuple((os.fsencode(path), str(word)) for path, word in changes),
            )
    raise UsageError(
        f"{source}: not a record of format {FORMAT}",
        hint="use the version of sandboxfs that wrote it",
    )


def _entries(directory: HostDir) -> tuple[list[Json], bool]:
    """The lines of the journal, and whether half a line follows, which was never written."""
    try:
        *lines, rest = directory.read(_JOURNAL).split(b"\n")
    except FileNotFoundError:
        return [], False
    entries: list[Json] = []
    for line in lines:
        try:
            found: object = json.loads(line)
        except ValueError:
            # Half a line, to which the next process put an end.
            continue
        if isinstance(found, dict):
            entries.append(found)
    return entries, bool(rest)
