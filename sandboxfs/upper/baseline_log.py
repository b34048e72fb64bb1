"""Baseline log, as it is written: appending, condensing and copying.

Also one baseline entry alone, kept with its content in a file by itself: the entry may come back when the
baseline has another one.

A line of the log is appended with one write, after the bytes that the line names and before the change that
hides the lower path. A kill in between leaves bytes that no line names, or half a line, which the next writer
cuts off. A full disk fails the baseline entry, and so the change: no change is made without its entry.

Every review adds lines and removes none, and every reader reads the whole log. So the next writer condenses a
log that has become several times as long as it was: only the entries in force are written down.
"""

import errno
import json
import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from json.encoder import encode_basestring_ascii

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import mounted_volume
from sandboxfs.upper.baseline import LIMIT, LOG, PACK, BaselineEntry, Log, digest_of

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def write_log(directory: HostDir, entries: Iterable[BaselineEntry]) -> None:
    """Make the log of a baseline that has none."""
    with open(directory.open(LOG, _NEW, 0o600), "wb") as log:
        for entry in entries:
            log.write(line_of(entry))


def write_pack(directory: HostDir, contents: Iterable[bytes]) -> None:
    """Make the pack of a baseline that has none; entries name their contents by offset and length."""
    with open(directory.open(PACK, _NEW, 0o600), "wb") as pack:
        for content in contents:
            pack.write(content)


def write_alone(directory: HostDir, name: bytes, entry: BaselineEntry, content: bytes | None) -> None:
    """Write one baseline entry to a file of its own, with its content."""
    with open(directory.open(name, _NEW, 0o600), "wb") as file:
        file.write(line_of(replace(entry, saved=None)) + (content or b""))
        file.flush()
        os.fsync(file.fileno())


def read_alone(directory: HostDir, name: bytes) -> tuple[BaselineEntry | None, bytes | None]:
    """Read an entry written by `write_alone`; None for a part that is damaged, or was not known."""
    with open(directory.open(name, os.O_RDONLY), "rb") as file:
        line, _, content = file.read().partition(b"\n")
    entry = next(iter(Log(line + b"\n").entries.values()), None)
    whole = entry is not None and digest_of(content) == entry.digest
    return entry, content if whole else None


def line_of(entry: BaselineEntry) -> bytes:
    out: dict[str, object] = {
        "path": _text(entry.path),
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size,
        "nlink": entry.nlink,
        "mtime_ns": entry.mtime_ns,
        "ctime_ns": entry.ctime_ns,
        "dev": entry.dev,
        "ino": entry.ino,
        "number": entry.number,
    }
    if entry.digest is not None:
        out["digest"] = entry.digest.hex()
    if entry.target is not None:
        out["target"] = _text(entry.target)
    if entry.saved is not None:
        out["saved"] = entry.saved
    if entry.marked:
        out["marked"] = True
    if entry.volume is not None:
        out["volume"] = entry.volume
    return json.dumps(out, separators=(",", ":")).encode("ascii") + b"\n"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


log = logging.getLogger(__name__)

SMALL = 1 << 17
"""Logs up to this many bytes are left alone."""

_TIMES = 4
_DRAFT = LOG + b".new"
# More than the length of the first line of a condensed log.
_FIRST_LINE = 100


def condense(directory: HostDir) -> None:
    """Write the log of a baseline anew if that is worth it; only for the process that may write to it.

    After a kill at any moment, the old log stands, or the new one does.
    """
    fd = directory.open(LOG, os.O_RDWR | os.O_CREAT, 0o600)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size <= SMALL or size <= _TIMES * _condensed_size(os.pread(fd, _FIRST_LINE, 0)):
            return
        lines = _lines(Log(file.read()))
    try:
        _exchange(directory, lines)
    except OSError as error:
        # Without disk space for another log the old one stays in use.
        log.info("the baseline's log stays as it is: %s", error.strerror)
        with suppress(OSError):
            directory.unlink(_DRAFT)


def _exchange(directory: HostDir, lines: list[bytes]) -> None:
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    with open(directory.open(_DRAFT, flags, 0o600), "wb") as draft:
        draft.write(b'{"condensed":%d}\n' % sum(map(len, lines)))
        draft.writelines(lines)
        draft.flush()
        os.fsync(draft.fileno())
    directory.rename(_DRAFT, directory, LOG)


def _lines(found: Log) -> list[bytes]:
    lines = []
    for path, entry in found.aside.items():
        settled = {"settled": path.decode("utf-8", "surrogateescape"), "whole": False}
        lines += [line_of(entry), json.dumps(settled, separators=(",", ":")).encode("ascii") + b"\n"]
    return lines + [line_of(entry) for entry in found.entries.values()]


def _condensed_size(beginning: bytes) -> int:
    """The length of the log when it was last written anew; 0 if it never was."""
    try:
        first = json.loads(beginning.split(b"\n")[0])
    except ValueError:
        return 0
    size = first.get("condensed", 0) if isinstance(first, dict) else 0
    return size if isinstance(size, int) else 0


# Attempts to read a file that the host changes meanwhile.
_ATTEMPTS = 3
_BLOCK = 1 << 16


class BaselineWriter:
    """Appends to a baseline; one writer at a time, in the process that holds the sandbox's lock."""

    def __init__(self, directory: HostDir) -> None:
        condense(directory)
        self._log = directory.open(LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._pack = -1
        try:
            self._log_end = _whole_lines(self._log)
            os.ftruncate(self._log, self._log_end)
            self._pack = directory.open(PACK, os.O_RDWR | os.O_CREAT, 0o600)
            self._pack_end = os.fstat(self._pack).st_size
        except BaseException:
            self.close()
            raise
        # Paths whose bytes this writer saved: a file made and removed in turns is saved once.
        self._kept: set[bytes] = set()

    def note(
        self,
        path: bytes,
        source: HostDir,
        name: bytes,
        status: os.stat_result,
        number: int,
        *,
        keep: bool,
        marked: bool = False,
    ) -> None:
        """Write an entry for *path*, from *name* in *source*; with *keep* the bytes of a file too.

        *marked* as in `BaselineEntry`.
        """
        more = ',"marked":true' if marked else ""
        if stat.S_ISREG(status.st_mode):
            status, content = _read(source, name, status)
            if content is not None:
                more += f',"digest":"{digest_of(content).hex()}"'
                if keep:
                    offset, length = self._save(content)
                    more += f',"saved":[{offset},{length}]'
        elif stat.S_ISLNK(status.st_mode):
            more += f',"target":{_quoted(source.readlink(name))}'
        elif stat.S_ISDIR(status.st_mode):
            volume = mounted_volume(source.fd, b"" if name == b"." else name)
            if volume is not None:
                more += f',"volume":"{volume}"'
        self._append(
            f'{{"path":{_quoted(path)},"mode":{status.st_mode},"uid":{status.st_uid},"gid":{status.st_gid},'
            f'"size":{status.st_size},"nlink":{status.st_nlink},"mtime_ns":{status.st_mtime_ns},'
            f'"ctime_ns":{status.st_ctime_ns},"dev":{status.st_dev},"ino":{status.st_ino},"number":{number}'
            f"{more}}}\n"
        )
        if keep:
            self._kept.add(path)
        else:
            self._kept.discard(path)

    def keep(self, path: bytes, source: HostDir, name: bytes) -> None:
        """Save the bytes of a file whose entry lacks them; they count only if they match its digest."""
        if path in self._kept:
            return
        status = source.stat(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return
        _, content = _read(source, name, status)
        if content is None:
            return
        offset, length = self._save(content)
        self._append(
            f'{{"kept":{_quoted(path)},"digest":"{digest_of(content).hex()}","saved":[{offset},{length}]}}\n'
        )
        self._kept.add(path)

    def resume(self, path: bytes, entry: BaselineEntry, content: bytes | None) -> None:
        """Make an earlier *entry* the entry of *path*, in place of a newer one."""
        saved = None if content is None else self._save(content)
        self._append(line_of(replace(entry, path=path, saved=saved)).decode("ascii"))
        self._kept.discard(path)

    def moved(self, old: bytes, new: bytes) -> None:
        """Note that the workspace's directory *old* has become *new*, in place of the former *new*."""
        self._append(f'{{"moved":[{_quoted(old)},{_quoted(new)}]}}\n')
        self._kept.clear()

    def forget(self, path: bytes) -> None:
        """Drop the entries of *path* and of all that was in it: the workspace has nothing there any more."""
        self._append(f'{{"forgotten":{_quoted(path)}}}\n')
        self._kept.discard(path)

    def suspended(self, path: bytes, *, whole: bool = False) -> None:
        """Suspend the entry of *path*, as a *whole* or by itself: the upper hides the path no more."""
        self._append(f'{{"settled":{_quoted(path)},"whole":{"true" if whole else "false"}}}\n')
        self._kept.discard(path)

    def returned(self, path: bytes, *, whole: bool = False) -> None:
        """Let a suspended entry count again, unless there is a newer one."""
        self._append(f'{{"returned":{_quoted(path)},"whole":{"true" if whole else "false"}}}\n')

    def clear(self) -> None:
        """Forget all entries: for an upper without entries, which hides nothing."""
        os.ftruncate(self._log, 0)
        os.ftruncate(self._pack, 0)
        self._log_end = self._pack_end = 0
        self._kept.clear()

    def close(self) -> None:
        for fd in (self._log, self._pack):
            if fd >= 0:
                os.close(fd)
        self._log = self._pack = -1

    def _append(self, line: str) -> None:
        data = line.encode("ascii")
        written = os.write(self._log, data)
        if written != len(data):
            # The disk is full. Half a line would swallow the next one.
            os.ftruncate(self._log, self._log_end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._log_end += written

    def _save(self, content: bytes) -> tuple[int, int]:
        """Put *content* at the end of the pack, over a failed attempt's; return its offset and length."""
        at = self._pack_end
        view = memoryview(content)
        while view:
            written = os.pwrite(self._pack, view, at)
            at += written
            view = view[written:]
        start, self._pack_end = self._pack_end, at
        return start, len(content)


def _quoted(path: bytes) -> str:
    return encode_basestring_ascii(path.decode("utf-8", "surrogateescape"))


def _read(source: HostDir, name: bytes, status: os.stat_result) -> tuple[os.stat_result, bytes | None]:
    """The content of a regular file and its status then; None when it is too large or cannot be read."""
    if status.st_size > LIMIT:
        return status, None
    try:
        fd = source.open_quietly(name, os.O_RDONLY)
    except OSError:
        # Removing a file takes no right to read it.
        return status, None
    try:
        content = os.read(fd, status.st_size + 1)
        # Other bytes of the same length, written just now, do no harm: the times differ then, and a
        # comparison asks the digest.
        if len(content) == status.st_size:
            return status, content
        return _read_still(fd)
    except OSError:
        return status, None
    finally:
        os.close(fd)


def _read_still(fd: int) -> tuple[os.stat_result, bytes | None]:
    """Read a file whose size is changing, until it did not change during a read."""
    status = os.fstat(fd)
    for _ in range(_ATTEMPTS):
        if status.st_size > LIMIT or not stat.S_ISREG(status.st_mode):
            break
        content = os.pread(fd, status.st_size + 1, 0)
        before, status = status, os.fstat(fd)
        if len(content) == status.st_size == before.st_size:
            return status, content
    return status, None


def _whole_lines(fd: int) -> int:
    """The offset at which the last whole line of a file ends."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
