"""How can one process repeat what the host did, so that programs in the view which watch it are told?

The kernel tells them only of what is done through the mount. So a process of ours does there what the host
did already; here it is recognised, by that process and by exactly what was announced, and answered without
doing anything. Whatever else that process tries to change is refused.
"""

import errno
from collections.abc import Callable, Iterable, Mapping

from sandboxfs.overlay.filesystem import AttributeChange, Caller, Entry, Filesystem
from sandboxfs.overlay.stack import host_error
from sandboxfs.overlay.window import Window


class Echo(Window):
    """A window whose onlooker, the echoer, may seem to do what was announced."""

    def __init__(self, inner: Filesystem, files: Mapping[bytes, Callable[[], bytes]]) -> None:
        super().__init__(inner, files)
        self._touched: frozenset[int] = frozenset()
        self._removed: frozenset[tuple[int, bytes]] = frozenset()

    def expect_touches(self, inodes: Iterable[int]) -> None:
        """Announce of which inodes alone the echoer may set times or size from now on."""
        self._touched = frozenset(inodes)

    def expect_removals(self, places: Iterable[tuple[int, bytes]]) -> None:
        """Announce which names alone the echoer may remove from now on."""
        self._removed = frozenset(places)

    # A directory is not even seemingly removed: the kernel would take the inode for dead, and the host may
    # use its number again.

    def _seem_to_change(self, ino: int, change: AttributeChange, caller: Caller) -> Entry:
        if ino not in self._touched or not _is_echo(change):
            raise host_error(errno.EPERM)
        return self.getattr(ino, caller)

    def _seem_to_remove(self, parent: int, name: bytes) -> None:
        if (parent, name) not in self._removed:
            raise host_error(errno.EPERM)


def _is_echo(change: AttributeChange) -> bool:
    """Whether only the times, or only the size, are set: what is answered is what they are."""
    times = AttributeChange(atime_ns=change.atime_ns, mtime_ns=change.mtime_ns)
    return change in (times, AttributeChange(size=change.size))
