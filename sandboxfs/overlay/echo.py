"""How can one process repeat what the host did, so that programs in the view which watch it are told?

The kernel tells them only of what is done through the mount. So a process of ours does there what the host
did already; here it is recognised, by that process and by exactly what was announced, and answered without
doing anything. Whatever else that process tries to change is refused.
"""

import errno
from collections.abc import Callable, Iterable, Mapping

from sandboxfs.overlay.filesystem import AttributeChange, Caller, Entry, Filesystem, Opened
from sandboxfs.overlay.stack import host_error
from sandboxfs.overlay.window import Window


class Echo(Window):
    """A window through which the process *echoer* changes nothing."""

    def __init__(self, inner: Filesystem, files: Mapping[bytes, Callable[[], bytes]]) -> None:
        super().__init__(inner, files)
        # No program has this number, as long as there is no echoer.
        self.echoer = -1
        self._touched: frozenset[int] = frozenset()
        self._removed: frozenset[tuple[int, bytes]] = frozenset()

    def expect_touches(self, inodes: Iterable[int]) -> None:
        """Announce of which inodes alone the echoer may set times or size from now on."""
        self._touched = frozenset(inodes)

    def expect_removals(self, places: Iterable[tuple[int, bytes]]) -> None:
        """Announce which names alone the echoer may remove from now on."""
        self._removed = frozenset(places)

    def _refuse_echoer(self, caller: Caller) -> None:
        if caller.pid == self.echoer:
            raise host_error(errno.EPERM)

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        if caller.pid != self.echoer:
            return super().setattr(ino, change, handle, caller)
        if ino not in self._touched or not _is_echo(change):
            raise host_error(errno.EPERM)
        return self.getattr(ino, caller)

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        if caller.pid != self.echoer:
            super().unlink(parent, name, caller)
        elif (parent, name) not in self._removed:
            raise host_error(errno.EPERM)

    # Everything else that changes something. A directory is not even seemingly removed: the kernel would take
    # the inode for dead, and the host may use its number again.

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        self._refuse_echoer(caller)
        super().rmdir(parent, name, caller)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        self._refuse_echoer(caller)
        super().setxattr(ino, name, value, flags, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        self._refuse_echoer(caller)
        super().removexattr(ino, name, caller)

    def mknod(self, parent: int, name: bytes, mode: int, device: int, caller: Caller) -> Entry:
        self._refuse_echoer(caller)
        return super().mknod(parent, name, mode, device, caller)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        self._refuse_echoer(caller)
        return super().mkdir(parent, name, mode, caller)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        self._refuse_echoer(caller)
        return super().symlink(parent, name, target, caller)

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        self._refuse_echoer(caller)
        return super().link(ino, parent, name, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        self._refuse_echoer(caller)
        super().rename(parent, name, new_parent, new_name, flags, caller)

    def open(self, ino: int, flags: int, caller: Caller) -> Opened:
        self._refuse_echoer(caller)
        return super().open(ino, flags, caller)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Opened, Entry]:
        self._refuse_echoer(caller)
        return super().create(parent, name, mode, flags, caller)


def _is_echo(change: AttributeChange) -> bool:
    """Whether only the times, or only the size, are set: what is answered is what they are."""
    times = AttributeChange(atime_ns=change.atime_ns, mtime_ns=change.mtime_ns)
    return change in (times, AttributeChange(size=change.size))
