"""FUSE notifications: invalidating the kernel's cached names, attributes and pages, and storing pages.

Most notifications may wait for requests that are under way, and so are never sent by the thread that answers
requests.
"""

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from sandboxfs.fuse.protocol import message, stores_well
from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.overlay.host_changes import Invalidation

# From linux/fuse.h: the kinds of notifications and the beginning of each.
_INVAL_INODE, _INVAL_ENTRY, _STORE = 2, 3, 4
_inode = struct.Struct("=Qqq").pack
_entry = struct.Struct("=QII").pack
_store = struct.Struct("=QQII").pack
_EXPIRE_ONLY = 1
# Seconds to wait, at the end, for a notification that is being sent.
_LAST_WORDS = 2.0


class Notifier:
    """Sends notifications to the kernel about one mount, as long as there is one."""

    def __init__(self) -> None:
        # Threads send notifications while another serves; none may send after that one closed the device.
        self._sending = Lock()
        # A lock of its own: removing a name may wait for a reader of the directory, and that reader waits for
        # a listing to be forgotten.
        self._forgetting = Lock()
        self._device: int | None = None

    def begin(self, device: int) -> None:
        self._device = device

    def end(self) -> None:
        # A thread that is still sending delays this for a moment only, unless the kernel waits for an answer.
        got = [lock for lock in (self._sending, self._forgetting) if lock.acquire(timeout=_LAST_WORDS)]
        self._device = None
        for lock in got:
            lock.release()

    def invalidate(self, shown: list[ShownInode]) -> None:
        """Make the kernel drop names, attributes and pages. May wait: not for the serving thread."""
        for ino, places in shown:
            self._tell(inode_outdated(ino))
            for parent, name in places:
                self._tell(name_gone(parent, name))
        self._forget_listings({parent for _, places in shown for parent, _ in places})

    def refresh(self, outdated: Invalidation) -> None:
        """Make the kernel ask again for everything that may have changed. May wait, as `invalidate` does.

        Names only expire where that is enough: removing the name of a directory would keep programs that work
        in it from finding their working directory.
        """
        for ino in outdated.inodes:
            self._tell(inode_outdated(ino))
        for parent, name in outdated.removed:
            self._tell(name_gone(parent, name))
        for parent, name in outdated.expired - outdated.removed:
            self._tell(name_expired(parent, name))
        self._forget_listings({parent for parent, _ in outdated.removed | outdated.expired} - outdated.inodes)

    def give(self, ino: int, content: bytes) -> bool:
        """Give the kernel the content of a file that nobody has open yet; whether the kernel stored it.

        For the serving thread: sending does not wait, because nobody reads a file that is not open.
        """
        if self._device is None or not stores_well():
            return False
        try:
            os.write(self._device, message(_STORE, _store(ino, 0, len(content), 0) + content))
        except OSError:
            return False
        return True

    def forget_attributes(self, ino: int) -> None:
        """Make the kernel ask for an inode's attributes again, and keep its pages.

        For the serving thread: sending does not wait, because no page is touched.
        """
        if self._device is not None:
            with suppress(OSError):
                os.write(self._device, message(_INVAL_INODE, _inode(ino, -1, 0)))

    def forget_listing(self, ino: int) -> None:
        """Make the kernel drop its cached listing of a directory.

        May wait, as `invalidate` does: the kernel may be handing a page of the listing to a program that
        has to be given another page first.
        """
        self._tell(inode_outdated(ino), self._forgetting)

    def _forget_listings(self, directories: Iterable[int]) -> None:
        for ino in directories:
            self._tell(inode_outdated(ino))

    def _tell(self, what: bytes, lock: "Lock | None" = None) -> None:
        """Send a notification. Without a mount there is no cache, and nothing is sent."""
        with lock or self._sending:
            if self._device is not None:
                # ENOENT: the kernel does not have the inode or name.
                with suppress(OSError):
                    os.write(self._device, what)


def inode_outdated(ino: int) -> bytes:
    """The notification that makes the kernel ask for an inode's attributes and pages, or listing, again."""
    return message(_INVAL_INODE, _inode(ino, 0, 0))


def name_gone(parent: int, name: bytes) -> bytes:
    """The notification that removes a name from the kernel's cache, until the name is looked up again."""
    return message(_INVAL_ENTRY, _entry(parent, len(name), 0) + name + b"\0")


def name_expired(parent: int, name: bytes) -> bytes:
    """The notification that makes a name expire. A kernel older than 6.2 removes the name instead."""
    return message(_INVAL_ENTRY, _entry(parent, len(name), _EXPIRE_ONLY) + name + b"\0")
