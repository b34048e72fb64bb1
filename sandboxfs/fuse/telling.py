"""What is the kernel told without having asked?

That it must ask again for names, attributes and pages, and what is in a small file. Most of that may wait for
requests that are under way, and so is never sent by the thread that answers them.
"""

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from sandboxfs.fuse.kernel import stores_well
from sandboxfs.fuse.wire import message
from sandboxfs.overlay.decisions import Shown
from sandboxfs.overlay.renewal import Outdated

# From linux/fuse.h: the kinds of messages and how they begin.
_INVAL_INODE, _INVAL_ENTRY, _STORE = 2, 3, 4
_inode = struct.Struct("=Qqq").pack
_entry = struct.Struct("=QII").pack
_store = struct.Struct("=QQII").pack
_EXPIRE_ONLY = 1
# Seconds to wait for a message that is being sent.
_LAST_WORDS = 2.0


class Telling:
    """Sends messages to the kernel about one mount, as long as there is one."""

    def __init__(self) -> None:
        # Threads send messages while another serves; when that closes what they use, none may.
        self._sending = Lock()
        # Of its own: who takes a name away may wait for somebody who reads the directory, who waits for this.
        self._forgetting = Lock()
        self._device: int | None = None

    def begin(self, device: int) -> None:
        self._device = device

    def end(self) -> None:
        # Who is still telling something holds it up for a moment only, unless the kernel waits for an answer.
        got = [lock for lock in (self._sending, self._forgetting) if lock.acquire(timeout=_LAST_WORDS)]
        self._device = None
        for lock in got:
            lock.release()

    def invalidate(self, shown: list[Shown]) -> None:
        """Make the kernel forget names, attributes and pages. May wait: not for the serving thread."""
        for ino, places in shown:
            self._tell(inode_outdated(ino))
            for parent, name in places:
                self._tell(name_gone(parent, name))
        self._forget_listings({parent for _, places in shown for parent, _ in places})

    def refresh(self, outdated: Outdated) -> None:
        """Make the kernel ask again for what may have changed. May wait, as `invalidate` does.

        Names are only made to expire where that is enough: taking away the name of a directory would keep
        those who work in it from finding out where they are.
        """
        for ino in outdated.inodes:
            self._tell(inode_outdated(ino))
        for parent, name in outdated.removed:
            self._tell(name_gone(parent, name))
        for parent, name in outdated.expired - outdated.removed:
            self._tell(name_expired(parent, name))
        self._forget_listings({parent for parent, _ in outdated.removed | outdated.expired} - outdated.inodes)

    def give(self, ino: int, content: bytes) -> bool:
        """Let the kernel have the content of a file that nobody has open yet; whether it has it then.

        On the serving thread: it waits for nobody, because nobody reads a file that is not open.
        """
        if self._device is None or not stores_well():
            return False
        try:
            os.write(self._device, message(_STORE, _store(ino, 0, len(content), 0) + content))
        except OSError:
            return False
        return True

    def forget_listing(self, ino: int) -> None:
        """Have a directory read again by whoever reads it next.

        May wait, as `invalidate` does: the kernel may be handing a page of it to a program that has to be
        given another page first.
        """
        self._tell(inode_outdated(ino), self._forgetting)

    def _forget_listings(self, directories: Iterable[int]) -> None:
        for ino in directories:
            self._tell(inode_outdated(ino))

    def _tell(self, what: bytes, lock: "Lock | None" = None) -> None:
        """Send a message, unless nothing is mounted, or is no longer: then the kernel knows nothing."""
        with lock or self._sending:
            if self._device is not None:
                # ENOENT: the kernel does not have it.
                with suppress(OSError):
                    os.write(self._device, what)


def inode_outdated(ino: int) -> bytes:
    """The message by which attributes and pages, or the listing, of an inode are asked for again."""
    return message(_INVAL_INODE, _inode(ino, 0, 0))


def name_gone(parent: int, name: bytes) -> bytes:
    """The message that takes a name away, until it is looked up again."""
    return message(_INVAL_ENTRY, _entry(parent, len(name), 0) + name + b"\0")


def name_expired(parent: int, name: bytes) -> bytes:
    """The message that has a name looked up again. A kernel older than 6.2 takes it away instead."""
    return message(_INVAL_ENTRY, _entry(parent, len(name), _EXPIRE_ONLY) + name + b"\0")
