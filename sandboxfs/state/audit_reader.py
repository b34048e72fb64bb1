"""What does the audit log say, in which order, and while it is still being written?

Reads all files of a log, oldest first. They are told apart by identity, and opened again when some were put
aside in between, so that a rotation neither hides nor repeats one. Damaged lines are passed on as they are:
what to do about them is for the caller to say.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sandboxfs.state.audit_file import kept_files

_POLL = 0.2


@dataclass(frozen=True)
class Line:
    """One line without its newline; *whole* is false for what the file's end has after its last one."""

    file: str
    number: int
    text: bytes
    whole: bool = True


class _OpenFile:
    """One file of the log, read on from where the last whole line ended."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self.name = name
        self.identity = _identity(os.fstat(stream.fileno()))
        self._number = 0

    def lines(self) -> Iterator[Line]:
        """Yield the whole lines not read before."""
        while True:
            start = self.stream.tell()
            text = self.stream.readline()
            if not text.endswith(b"\n"):
                # It may be half of a line that is being written, and it may yet be taken back.
                self.stream.seek(start)
                return
            self._number += 1
            yield Line(self.name, self._number, text[:-1])

    def rest(self) -> Iterator[Line]:
        """Yield what follows the last whole line, if anything does."""
        text = self.stream.read()
        if text:
            yield Line(self.name, self._number + 1, text, whole=False)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_newer(path: Path, than: tuple[int, int] | None) -> list[_OpenFile]:
    """Open the files newer than the one with the identity *than*, oldest first."""
    while True:
        before = _identities(path)
        opened = _open_once(path, than)
        if _identities(path) == before:
            return opened
        for one in opened:
            one.stream.close()


def _identities(path: Path) -> list[tuple[int, int]]:
    """The files that there are, by which a rotation is noticed."""
    found = []
    for place in kept_files(path):
        with suppress(FileNotFoundError):
            found.append(_identity(place.stat()))
    return found


def _open_once(path: Path, than: tuple[int, int] | None) -> list[_OpenFile]:
    opened: list[_OpenFile] = []
    for place in kept_files(path):
        try:
            one = _OpenFile(place.open("rb"), place.name)
        except FileNotFoundError:
            continue
        if one.identity == than:
            one.stream.close()
            break
        if any(other.identity == one.identity for other in opened):
            one.stream.close()
        else:
            opened.append(one)
    return opened[::-1]


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line that the log at *path* has now, oldest first."""
    with ExitStack() as stack:
        files = _open_newer(path, None)
        for one in files:
            stack.enter_context(one.stream)
        for one in files:
            yield from one.lines()
            yield from one.rest()


def follow_lines(path: Path, ended: Callable[[], bool]) -> Iterator[Line]:
    """Yield every whole line of the log at *path*, and further ones as they come, until *ended* says so.

    *ended* is asked when there is nothing more to read; what was written before it said yes is still given.
    """
    # The last file stays open while it is waited on, so that no other can be given its identity.
    files: list[_OpenFile] = []
    ending = False
    try:
        while True:
            # Newer files are looked for first: where there are any, nothing is added to the last one.
            files += _open_newer(path, files[-1].identity if files else None)
            for one in files:
                yield from one.lines()
            for one in files[:-1]:
                one.stream.close()
            del files[:-1]
            if ending:
                return
            ending = ended()
            if not ending:
                # Nothing in the standard library tells of a file that grows.
                time.sleep(_POLL)
    finally:
        for one in files:
            one.stream.close()
