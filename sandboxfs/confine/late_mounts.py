"""Late mounts: a view mounted into the namespaces of a program that runs under bubblewrap already.

A child process enters the user namespace that owns the program's mount namespace, in which it has every
privilege over that one and none over the machine. There it copies the mount table of the machine, takes a
copy of the view's mount out of that, enters the program's mount namespace and attaches the copy. Nothing is
mounted anew, so that the view's daemon needs to know nothing of it, and nobody needs to be root.

The program must have no say in where the mount lands. So the way to the place is gone name by name and by
descriptor, through no link. What is missing is made, on the run's own file systems only; what is no directory
is an error. Every directory on the way that the program could rename is made a mount of its own, which it
cannot, and what was mounted is looked up again from the top in the end.
"""

import errno
import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sandboxfs.confine import kernel_calls
from sandboxfs.errors import MountFailed
from sandboxfs.paths import quoted

_AT_FDCWD = -100
_MADE_MODE = 0o755
# Seconds for bubblewrap to have come as far as the program's first process, and for the kernel to mount.
_STARTING = 10.0
_MOUNTING = 20.0
_LOOK_AGAIN = 0.02
_REPORT_LIMIT = 1 << 16
# So often a name may come and go while it is looked at.
_ATTEMPTS = 5


class ProgramNamespaces:
    """The namespaces of the program that a bubblewrap process confines."""

    def __init__(self, process: int) -> None:
        """Hold the first process of the program's namespace by its directory in /proc, open as *process*."""
        self._process = process

    @classmethod
    def of(cls, bubblewrap: int) -> "ProgramNamespaces":
        """Find the namespaces that the process *bubblewrap*, which lives meanwhile, has made.

        Raises `MountFailed` when there are none: it has ended, or is something else.
        """
        deadline = time.monotonic() + _STARTING
        while True:
            for process in _children(bubblewrap):
                # Until it is another program than bubblewrap, its mounts are not where they belong.
                if _is_other_program(process, bubblewrap):
                    return cls(process)
                os.close(process)
            if time.monotonic() > deadline or not os.path.exists(f"/proc/{bubblewrap}"):  # noqa: PTH110
                raise MountFailed("the program's namespaces cannot be found: it is not there any more")
            time.sleep(_LOOK_AGAIN)

    def close(self) -> None:
        os.close(self._process)

    def mount_table(self) -> bytes:
        """Read the mounts that the program sees, in the form of mountinfo."""
        with open(_opened("mountinfo", self._process), "rb") as table:
            return table.read()

    def mount(self, source: Path, place: Path, device: int) -> None:
        """Mount at *place* what is mounted on the machine at *source*, on *device*; raises `MountFailed`."""
        _in_child(lambda: self._mount(source, place, device))

    def unmount(self, place: Path, device: int) -> None:
        """Take what was mounted at *place* away again, also where it is in use; raises `MountFailed`."""
        _in_child(lambda: self._unmount(place, device))

    def _mount(self, source: Path, place: Path, device: int) -> None:
        namespace = self._enter_user_namespace()
        kernel_calls.copy_mount_namespace()
        view = kernel_calls.copy_of_mount(_AT_FDCWD, os.fsencode(source))
        if os.fstat(view).st_dev != device:
            raise MountFailed(f"{quoted(source)} is not the view any more")
        kernel_calls.keep_privileges_off(view)
        kernel_calls.enter_mount_namespace(namespace)
        os.umask(0o022)
        way = MountWay(place)
        parent, name = way.parent()
        target = way.step(parent, name)
        if kernel_calls.is_mount(target):
            raise MountFailed(f"something is mounted at {quoted(place)} already")
        way.attach(view, target, parent, name)

    def _unmount(self, place: Path, device: int) -> None:
        namespace = self._enter_user_namespace()
        kernel_calls.enter_mount_namespace(namespace)
        try:
            here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in place.parts[1:]:
                here = kernel_calls.open_directory(here, os.fsencode(part))
        except FileNotFoundError:
            return
        if kernel_calls.is_mount(here) and os.fstat(here).st_dev == device:
            os.fchdir(here)
            kernel_calls.detach_current()

    def _enter_user_namespace(self) -> int:
        namespace = _opened("ns/mnt", self._process)
        if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/mnt").st_ino:  # noqa: PTH116
            raise MountFailed("the program has no mounts of its own")
        parent = os.getppid()
        kernel_calls.enter_user_namespace(kernel_calls.owner_of_namespace(namespace))
        # Afterwards: new privileges undo it.
        kernel_calls.end_with_parent(parent)
        return namespace


class MountWay:
    """The way to a *place* in the mount namespace of this process, whose root is the program's."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def parent(self) -> tuple[int, bytes]:
        """Go to the directory that holds the place; return it, and the name of the place in it."""
        here = self._root
        *names, last = map(os.fsencode, self._place.parts[1:])
        for name in names:
            found = self.step(here, name)
            if not kernel_calls.is_mount(found) and _is_writable(found):
                self.attach(kernel_calls.copy_of_mount(found, whole=True), found, here, name)
                found = kernel_calls.open_directory(here, name)
            here = found
        return here, last

    def step(self, parent: int, name: bytes) -> int:
        """Open the directory called *name*, which is made where there is none."""
        for _ in range(_ATTEMPTS):
            try:
                return kernel_calls.open_directory(parent, name)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    self._make(parent, name)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
                    raise self._in_the_way(name) from error
                raise
        raise self._changing()

    def attach(self, mount: int, target: int, parent: int, name: bytes) -> None:
        """Attach *mount* at the open *target*, which must be what is called *name* in *parent* then too."""
        kernel_calls.attach_mount(mount, target)
        try:
            found = kernel_calls.open_directory(parent, name)
            in_place = kernel_calls.is_mount(found) and _identity(found) == _identity(mount)
        except OSError:
            in_place = False
        if not in_place:
            # Wherever the program has moved the directory meanwhile.
            os.fchdir(mount)
            kernel_calls.detach_current()
            raise self._changing()

    def _make(self, parent: int, name: bytes) -> None:
        if os.fstatvfs(parent).f_flag & os.ST_RDONLY:
            # The root of the program's world is a file system in memory, which the program sees read-only.
            if os.fstat(parent).st_dev != os.fstat(self._root).st_dev:
                raise MountFailed(f"there is no {quoted(name)} on the way to {quoted(self._place)}")
            parent = kernel_calls.copy_of_mount(parent)
            kernel_calls.make_writable(parent)
        os.mkdir(name, _MADE_MODE, dir_fd=parent)

    def _in_the_way(self, name: bytes) -> MountFailed:
        return MountFailed(
            f"cannot mount at {quoted(self._place)}: {quoted(name)} on the way there is no directory inside"
        )

    def _changing(self) -> MountFailed:
        return MountFailed(f"cannot mount at {quoted(self._place)}: the program changes the way to it")


def _is_writable(directory: int) -> bool:
    return not os.fstatvfs(directory).f_flag & os.ST_RDONLY


def _identity(opened: int) -> tuple[int, int]:
    status = os.fstat(opened)
    return status.st_dev, status.st_ino


def _in_child(work: Callable[[], None]) -> None:
    """Do *work* in a child process, which may go wherever it wants; raises `MountFailed` as *work* does."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _report(work, writing)
    os.close(writing)
    try:
        answered = select.select([reading], [], [], _MOUNTING)[0]
        if not answered:
            # The view's daemon may hang.
            os.kill(child, 9)
        said = os.read(reading, _REPORT_LIMIT) if answered else b""
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    if said != b"null":
        raise MountFailed(json.loads(said) if said else "the view could not be mounted in time")


def _report(work: Callable[[], None], writing: int) -> None:
    said: str | None = "the process that mounts failed"
    try:
        work()
        said = None
    except MountFailed as error:
        said = error.message
    except OSError as error:
        said = f"cannot mount in the program's namespaces: {error.strerror or error}"
    except Exception as error:
        said = f"cannot mount in the program's namespaces: {type(error).__name__}: {error}"
    finally:
        with suppress(OSError):
            os.write(writing, json.dumps(said).encode())
        os._exit(0)


def _children(parent: int) -> list[int]:
    """Open the directories in /proc of the processes that *parent* has started."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            process = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        if _parent_of(process) == parent:
            found.append(process)
        else:
            os.close(process)
    return found


def _parent_of(process: int) -> int | None:
    try:
        with open(_opened("stat", process), "rb") as status:
            # The name in it may hold anything, so count from its closing parenthesis.
            return int(status.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _is_other_program(process: int, bubblewrap: int) -> bool:
    try:
        one, other = os.stat("exe", dir_fd=process), os.stat(f"/proc/{bubblewrap}/exe")  # noqa: PTH116
    except OSError:
        return False
    return (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino)


def _opened(name: str, process: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
