"""How is it written down what the workspace was? The baseline, as it is written: see `baseline`.

A line of the log is appended with one write, after the bytes that it names and before the change that hides
what it tells of. Whoever is killed in between leaves bytes that no line names, or half a line, which the next
writer cuts off. A full disk fails the sighting, and so the change: nothing is changed that is not noted.
"""

import errno
import os
import stat
from dataclasses import replace
from json.encoder import encode_basestring_ascii

from sandboxfs.layers.baseline import LIMIT, LOG, PACK, Sighting, digest_of
from sandboxfs.layers.baseline_condensing import condense
from sandboxfs.layers.baseline_copy import line_of
from sandboxfs.layers.hostdir import HostDir

# How often a file is read again that the host changes meanwhile.
_ATTEMPTS = 3
_BLOCK = 1 << 16


class BaselineWriter:
    """Appends to a baseline; one at a time, in the process that holds the sandbox's lock."""

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
        """Write down what *name* in *source*, the lower *path*, is; with *keep* the bytes of a file too.

        *marked* as in `Sighting`.
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
        """Save the bytes of a file noted before without them; they count only if they are what was noted."""
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

    def resume(self, path: bytes, sighting: Sighting, content: bytes | None) -> None:
        """Let *path* have been what an earlier *sighting* says, in place of what was noted since."""
        saved = None if content is None else self._save(content)
        self._append(line_of(replace(sighting, path=path, saved=saved)).decode("ascii"))
        self._kept.discard(path)

    def moved(self, old: bytes, new: bytes) -> None:
        """Say that the workspace's directory *old* is *new* from now on, in place of what was there."""
        self._append(f'{{"moved":[{_quoted(old)},{_quoted(new)}]}}\n')
        self._kept.clear()

    def forget(self, path: bytes) -> None:
        """Take back what is known of *path* and what was in it: the workspace has nothing there any more."""
        self._append(f'{{"forgotten":{_quoted(path)}}}\n')
        self._kept.discard(path)

    def settled(self, path: bytes, *, whole: bool = False) -> None:
        """Put aside what is known of *path*, as a *whole* or itself alone: the upper hides it no more."""
        self._append(f'{{"settled":{_quoted(path)},"whole":{"true" if whole else "false"}}}\n')
        self._kept.discard(path)

    def returned(self, path: bytes, *, whole: bool = False) -> None:
        """Let what was put aside count again, unless something else was noted since."""
        self._append(f'{{"returned":{_quoted(path)},"whole":{"true" if whole else "false"}}}\n')

    def clear(self) -> None:
        """Forget everything: for an upper without entries, which hides nothing."""
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
        """Put bytes at the end of the pack, over what a failed attempt left; return where they are."""
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
        # Other bytes of the same length, written just now, do no harm: the times tell of them, and whoever
        # compares asks the digest then.
        if len(content) == status.st_size:
            return status, content
        return _read_still(fd)
    except OSError:
        return status, None
    finally:
        os.close(fd)


def _read_still(fd: int) -> tuple[os.stat_result, bytes | None]:
    """Read a file whose size is changing until it stood still meanwhile."""
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
    """Where the last whole line of a file ends."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
