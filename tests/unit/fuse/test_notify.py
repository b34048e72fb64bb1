"""Is the kernel told what it must ask for again, as long as there is a mount, and which kernels get more?"""

import errno
import os
import struct
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from sandboxfs.fuse import notify as module
from sandboxfs.fuse.notify import Notifier, inode_outdated, name_expired, name_gone
from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.overlay.host_changes import Invalidation
from tests.unit.fuse.kernel import HUNG, Kernel

INVAL_INODE, INVAL_ENTRY, STORE = 2, 3, 4


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IiQ", 16 + len(body), kind, 0) + body


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setattr(module, "stores_well", lambda: True)
    made = Kernel()
    yield made
    made.close()


@pytest.fixture
def telling(kernel: Kernel) -> Notifier:
    made = Notifier()
    made.begin(kernel.number)
    return made


def test_messages_have_the_layout_of_the_kernel() -> None:
    assert inode_outdated(1 << 40) == message(INVAL_INODE, struct.pack("=Qqq", 1 << 40, 0, 0))
    assert name_gone(5, b"a name") == message(INVAL_ENTRY, struct.pack("=QII", 5, 6, 0) + b"a name\0")
    # FUSE_EXPIRE_ONLY.
    assert name_expired(5, b"\xff") == message(INVAL_ENTRY, struct.pack("=QII", 5, 1, 1) + b"\xff\0")


def test_what_is_shown_no_more_is_forgotten_with_its_names_and_the_listings_they_are_in(
    kernel: Kernel, telling: Notifier
) -> None:
    telling.invalidate(
        [ShownInode(10, [(1, b"one"), (2, b"two")]), ShownInode(11, [(1, b"three")]), ShownInode(12, [])]
    )
    told = kernel.all_told()
    assert told[:6] == [
        inode_outdated(10),
        name_gone(1, b"one"),
        name_gone(2, b"two"),
        inode_outdated(11),
        name_gone(1, b"three"),
        inode_outdated(12),
    ]
    assert sorted(told[6:]) == sorted([inode_outdated(1), inode_outdated(2)])


def test_names_that_may_still_be_right_only_expire(kernel: Kernel, telling: Notifier) -> None:
    telling.refresh(Invalidation({10}, {(1, b"both"), (2, b"expired")}, {(1, b"both"), (10, b"removed")}))
    told = kernel.all_told()
    assert sorted(told) == sorted(
        [
            inode_outdated(10),
            name_gone(1, b"both"),
            name_gone(10, b"removed"),
            name_expired(2, b"expired"),
            # The listings; that of 10 is outdated with its inode.
            inode_outdated(1),
            inode_outdated(2),
        ]
    )


def test_a_file_is_given_whole(kernel: Kernel, telling: Notifier) -> None:
    content = os.urandom(1 << 16)
    assert telling.give(9, content)
    assert kernel.all_told() == [message(STORE, struct.pack("=QQII", 9, 0, len(content), 0) + content)]


def test_a_kernel_that_does_not_store_well_is_given_nothing(
    kernel: Kernel, telling: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "stores_well", lambda: False)
    assert not telling.give(9, b"content")
    assert kernel.told() is None


def tell_everything(telling: Notifier) -> bool:
    telling.invalidate([ShownInode(10, [(1, b"name")])])
    telling.refresh(Invalidation({10}, {(1, b"expired")}, {(1, b"removed")}))
    return telling.give(10, b"content")


def test_nothing_is_told_before_there_is_a_mount_or_after(kernel: Kernel) -> None:
    telling = Notifier()
    assert not tell_everything(telling)
    assert kernel.told() is None
    telling.begin(kernel.number)
    assert tell_everything(telling)
    assert len(kernel.all_told()) == 8
    telling.end()
    assert not tell_everything(telling)
    assert kernel.told() is None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EINVAL])
def test_what_the_kernel_does_not_take_is_no_error_but_it_has_no_content_then(
    telling: Notifier, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    told = []

    def refuse(fd: int, data: bytes) -> int:
        told.append(data)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    assert not tell_everything(telling)
    assert len(told) == 8


class Slow:
    """A kernel that takes a message only when the test says so."""

    def __init__(self, device: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = Event()
        self.may_go_on = Event()
        self.done = False
        self._device = device
        self._real = os.write
        monkeypatch.setattr(os, "write", self._write)

    def _write(self, fd: int, data: bytes) -> int:
        if fd != self._device:
            return self._real(fd, data)
        self.asked.set()
        assert self.may_go_on.wait(HUNG)
        self.done = True
        return len(data)


def test_a_listing_is_forgotten_while_a_name_is_being_taken_away(
    kernel: Kernel, telling: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(kernel.number, monkeypatch)
    # The kernel waits for whoever is reading the directory, who is answered when its listing is forgotten.
    taking = Thread(target=telling.refresh, args=(Invalidation(removed={(1, b"name")}),))
    taking.start()
    assert slow.asked.wait(HUNG)
    slow.asked.clear()
    forgetting = Thread(target=telling.forget_listing, args=(1,))
    forgetting.start()
    assert slow.asked.wait(HUNG), "it waits for the other message"
    slow.may_go_on.set()
    for thread in (taking, forgetting):
        thread.join(HUNG)


def test_the_end_waits_for_a_message_that_is_being_sent(
    kernel: Kernel, telling: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS", HUNG)
    slow = Slow(kernel.number, monkeypatch)
    when_it_ended: list[bool] = []

    def end() -> None:
        telling.end()
        when_it_ended.append(slow.done)

    threads = [Thread(target=telling.invalidate, args=([ShownInode(10, [])],)), Thread(target=end)]
    threads[0].start()
    assert slow.asked.wait(HUNG)
    threads[1].start()
    slow.may_go_on.set()
    for thread in threads:
        thread.join(HUNG)
    assert when_it_ended == [True]


def test_a_message_that_the_kernel_does_not_take_holds_the_end_up_for_a_moment_only(
    kernel: Kernel, telling: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS", 0.05)
    slow = Slow(kernel.number, monkeypatch)
    sent: list[int] = []

    def send() -> None:
        telling.invalidate([ShownInode(10, [])])
        telling.invalidate([ShownInode(11, [])])
        sent.append(1)

    thread = Thread(target=send)
    thread.start()
    assert slow.asked.wait(HUNG)
    telling.end()
    assert not slow.done
    slow.asked.clear()
    slow.may_go_on.set()
    thread.join(HUNG)
    assert sent == [1]
    assert not slow.asked.is_set(), "told after the end"
