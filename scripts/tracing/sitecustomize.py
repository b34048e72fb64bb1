"""The observer of `scripts/trace`: which files of a package calls enter, and how often control passes.

Python imports this module by itself where its directory is on PYTHONPATH; the package needs no change and
knows nothing of it. Without SANDBOXFS_TRACE in the environment it does nothing. What it says there:

    SANDBOXFS_TRACE          a directory, into which every process writes a file of its own
    SANDBOXFS_TRACE_PACKAGE  the directory of the package
    SANDBOXFS_TRACE_OPENS    count only while an OPEN of a file for writing is answered

Functions count, not the code of modules and classes that runs when they are imported, nor what it calls. A
call passes control where the innermost frame of the package below it is of another file. What it cannot see
is a process that is killed: the counts are written when a process ends, or becomes another program.

An OPEN is found where nothing can be renamed: at the device. Requests and answers are what is read from and
written to `/dev/fuse` with calls of `os`, in the format of the kernel. Counting begins when a request has
been read whose opcode is 14, with flags that allow writing, and ends when the answer with its number has been
written; the threads that did either count, others had something else to do. The file in which the request was
read counts as entered.
"""

import atexit
import json
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

_OPEN = 14
_HEADER = struct.Struct("=IIQQIII")
_ANSWER = struct.Struct("=IiQ")
_FLAGS = struct.Struct("=I")
_HEADER_SIZE = 40


class Counts:
    """What one thread did, or all of them."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.passes: Counter[tuple[str, str]] = Counter()

    def add(self, other: "Counts") -> None:
        self.files += other.files
        self.passes += other.passes

    def as_json(self) -> dict[str, object]:
        passes = [[source, target, count] for (source, target), count in sorted(self.passes.items())]
        return {"files": dict(sorted(self.files.items())), "passes": passes}


class Observer:
    """Gets the events of all threads."""

    def __init__(self, package: str) -> None:
        self._prefix = os.path.realpath(package) + os.sep
        self._names: dict[str, str | None] = {}
        self._importing: Counter[int] = Counter()
        self.threads: dict[int, Counts] = {}
        self.counting = True

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" and event != "return":
            return
        file = self.file_of(frame)
        if file is None:
            return
        thread = threading.get_ident()
        # The code of a module or a class; that of a program is as a function.
        is_function = frame.f_code.co_flags & CO_OPTIMIZED or frame.f_globals.get("__name__") == "__main__"
        if not is_function:
            self._importing[thread] += 1 if event == "call" else -1
        elif event == "call" and self.counting and not self._importing[thread]:
            self.entered(thread, file, frame.f_back)

    def entered(self, thread: int, file: str, caller: FrameType | None) -> None:
        counts = self.threads.setdefault(thread, Counts())
        counts.files[file] += 1
        while caller is not None:
            source = self.file_of(caller)
            if source is not None:
                if source != file:
                    counts.passes[source, file] += 1
                return
            caller = caller.f_back

    def file_of(self, frame: FrameType) -> str | None:
        """The file of the package in which the code of a frame is."""
        found = frame.f_code.co_filename
        if found not in self._names:
            real = os.path.realpath(found)
            inside = real.startswith(self._prefix) and real.endswith(".py")
            self._names[found] = real.removeprefix(self._prefix) if inside else None
        return self._names[found]

    def total(self, *threads: int) -> Counts:
        counts = Counts()
        for thread, one in list(self.threads.items()):
            if not threads or thread in threads:
                counts.add(one)
        return counts


class Report:
    """Where a process writes what it counted."""

    def __init__(self, folder: str, observer: Observer) -> None:
        self._folder = folder
        self._observer = observer
        self._role = "daemon" if "sandboxfs.daemon" in sys.orig_argv else "command"
        self._written = False

    def whole(self) -> None:
        """Write the counts of a process that ends."""
        if not self._written:
            self._written = True
            self.write(self._observer.total())

    def write(self, counts: Counts) -> None:
        described = {"role": self._role, "argv": sys.orig_argv, **counts.as_json()}
        try:
            with open(f"{self._folder}/{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(described) + "\n")
        except OSError as error:
            os.write(2, f"trace: process {os.getpid()} cannot tell what it counted: {error}\n".encode())

    def begin_anew(self) -> None:
        """A forked process counts for itself."""
        self._observer.threads.clear()
        self._written = False


def before(report: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def reporting(*args: Any, **kwargs: Any) -> Any:
        report()
        return call(*args, **kwargs)

    return reporting


class Opens:
    """Looks at what is read from the device and written to it."""

    def __init__(self, observer: Observer, report: Report) -> None:
        self._observer = observer
        self._report = report
        self._devices: dict[int, bool] = {}
        self._number: int | None = None
        self._reader = 0

    def install(self) -> None:
        self._observer.counting = False
        readv, read, writev, write = os.readv, os.read, os.writev, os.write

        def observed_readv(fd: int, buffers: Any) -> int:
            size = readv(fd, buffers)
            if self._is_device(fd):
                self._received(bytes(b"".join(bytes(one[:64]) for one in buffers)[: min(size, 64)]))
            return size

        def observed_read(fd: int, size: int) -> bytes:
            content = read(fd, size)
            if self._is_device(fd):
                self._received(content[:64])
            return content

        def observed_writev(fd: int, buffers: Any) -> int:
            size = writev(fd, buffers)
            if self._is_device(fd):
                self._sent(bytes(buffers[0][:16]))
            return size

        def observed_write(fd: int, content: Any) -> int:
            size = write(fd, content)
            if self._is_device(fd):
                self._sent(bytes(content[:16]))
            return size

        # mypy would have the very signatures.
        replaced: dict[str, object] = {
            "readv": observed_readv,
            "read": observed_read,
            "writev": observed_writev,
            "write": observed_write,
        }
        for name, call in replaced.items():
            setattr(os, name, call)

    def _is_device(self, fd: int) -> bool:
        if fd not in self._devices:
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                return False
            # Other descriptors come and go under the same numbers.
            if target != "/dev/fuse":
                return False
            self._devices[fd] = True
        return True

    def _received(self, head: bytes) -> None:
        if len(head) < _HEADER_SIZE + _FLAGS.size:
            return
        _, opcode, unique, *_ = _HEADER.unpack_from(head)
        flags = _FLAGS.unpack_from(head, _HEADER_SIZE)[0]
        if opcode != _OPEN or not flags & os.O_ACCMODE:
            return
        self._observer.threads.clear()
        self._number, self._reader = unique, threading.get_ident()
        # Whoever read it is on its way already.
        frame: FrameType | None = sys._getframe(2)
        file = None if frame is None else self._observer.file_of(frame)
        if file is not None:
            self._observer.threads.setdefault(self._reader, Counts()).files[file] += 1
        self._observer.counting = True

    def _sent(self, head: bytes) -> None:
        if self._number is not None and len(head) == _ANSWER.size and _ANSWER.unpack(head)[2] == self._number:
            self._observer.counting = False
            self._number = None
            self._report.write(self._observer.total(self._reader, threading.get_ident()))


def install(folder: str) -> None:
    observer = Observer(os.environ["SANDBOXFS_TRACE_PACKAGE"])
    report = Report(folder, observer)
    if "SANDBOXFS_TRACE_OPENS" in os.environ:
        Opens(observer, report).install()
    else:
        atexit.register(report.whole)
        os.register_at_fork(after_in_child=report.begin_anew)
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, before(report.whole, getattr(os, name)))
    threading.setprofile(observer)
    sys.setprofile(observer)


if os.environ.get("SANDBOXFS_TRACE"):
    install(os.environ["SANDBOXFS_TRACE"])
