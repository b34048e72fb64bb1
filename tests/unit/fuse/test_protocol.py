"""Do answers have the layout that linux/fuse.h says?"""

import os
import stat
import struct

import pytest

from sandboxfs.fuse import protocol
from sandboxfs.fuse.protocol import Opcode
from sandboxfs.overlay.filesystem import Entry, Lasting
from tests.unit.fuse.kernel import attributes_of, entry_of, listed_in, opened_of, request

A_SECOND = 10**9
# enum fuse_opcode.
OPCODES = {
    "LOOKUP": 1,
    "FORGET": 2,
    "GETATTR": 3,
    "SETATTR": 4,
    "READLINK": 5,
    "SYMLINK": 6,
    "MKNOD": 8,
    "MKDIR": 9,
    "UNLINK": 10,
    "RMDIR": 11,
    "RENAME": 12,
    "LINK": 13,
    "OPEN": 14,
    "READ": 15,
    "WRITE": 16,
    "STATFS": 17,
    "RELEASE": 18,
    "FSYNC": 20,
    "SETXATTR": 21,
    "GETXATTR": 22,
    "LISTXATTR": 23,
    "REMOVEXATTR": 24,
    "INIT": 26,
    "OPENDIR": 27,
    "RELEASEDIR": 29,
    "FSYNCDIR": 30,
    "CREATE": 35,
    "INTERRUPT": 36,
    "DESTROY": 38,
    "IOCTL": 39,
    "NOTIFY_REPLY": 41,
    "BATCH_FORGET": 42,
    "READDIRPLUS": 44,
    "RENAME2": 45,
}


def status(mode: int = stat.S_IFREG | 0o4640, times: tuple[int, int, int] = (0, 0, 0)) -> os.stat_result:
    """Numbers of which no two are the same; the times in nanoseconds."""
    atime, mtime, ctime = times
    extra = {"st_atime_ns": atime, "st_mtime_ns": mtime, "st_ctime_ns": ctime}
    extra |= {"st_blksize": 4096, "st_blocks": 24, "st_rdev": os.makedev(8, 300)}
    return os.stat_result((mode, 1, 2, 3, 1001, 1002, 1 << 40, 0, 0, 0), extra)


def entry(
    times: tuple[int, int, int] = (0, 0, 0),
    name: Lasting = Lasting.BRIEFLY,
    attributes: Lasting = Lasting.BRIEFLY,
    *,
    guarded: bool = False,
    mentioned: bool = False,
) -> Entry:
    return Entry(1 << 35, status(times=times), 2, name, attributes, guarded, mentioned)


def test_operations_have_the_numbers_of_the_kernel() -> None:
    assert {opcode.name: opcode.value for opcode in Opcode} == OPCODES


def test_how_much_room_there_is_is_told_in_the_order_of_the_kernel() -> None:
    host = os.statvfs_result((1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
    # bsize and frsize come first there, here blocks, bfree, bavail, files and ffree.
    assert protocol.statistics(host) == struct.pack("=QQQQQIIII6I", 3, 4, 5, 6, 7, 1, 10, 2, 0, *[0] * 6)


def test_the_header_of_a_request_is_taken_apart() -> None:
    header = request(22, b"body", ino=1 << 40, unique=1 << 50, caller=(1, 2, 3))
    assert protocol.header_of(header) == (44, 22, 1 << 50, 1 << 40, 1, 2, 3)
    assert header[protocol.BODY :] == b"body"


def test_an_answer_begins_with_its_length_the_error_and_the_number_of_the_request() -> None:
    assert protocol.HEADER.pack(20, -13, 1 << 50) == struct.pack("=IiQ", 20, -13, 1 << 50)
    assert protocol.HEADER.size == 16


def test_a_message_has_its_kind_and_no_number() -> None:
    assert protocol.message(3, b"body") == struct.pack("=IiQ", 20, 3, 0) + b"body"


def test_attributes_say_all_that_the_status_does() -> None:
    times = 5 * A_SECOND + 1, 6 * A_SECOND + 2, 7 * A_SECOND + 999_999_999
    body = protocol.attributes(entry(times))
    assert body == struct.pack(
        "=QII QQQqqqIIIIIIIIII",
        *(0, A_SECOND // 2, 0),
        *(1 << 35, 1 << 40, 24, 5, 6, 7, 1, 2, 999_999_999),
        *(stat.S_IFREG | 0o4640, 2, 1001, 1002, os.makedev(8, 300), 4096, 0),
    )


def test_a_moment_before_1970_has_negative_seconds_and_positive_nanoseconds() -> None:
    found = attributes_of(protocol.attributes(entry((-1, -A_SECOND, -3 * A_SECOND // 2)))).attr
    assert (found.atime, found.atimensec) == (-1, 999_999_999)
    assert (found.mtime, found.mtimensec) == (-1, 0)
    assert (found.ctime, found.ctimensec) == (-2, 500_000_000)


LASTING = [
    (Lasting.BRIEFLY, A_SECOND // 2),
    (Lasting.WATCHED, 60 * A_SECOND),
    (Lasting.LONG, 3600 * A_SECOND),
]


@pytest.mark.parametrize(("lasting", "nanoseconds"), LASTING)
def test_what_is_known_of_an_inode_is_good_as_long_as_it_lasts(lasting: Lasting, nanoseconds: int) -> None:
    assert attributes_of(protocol.attributes(entry(attributes=lasting))).attr_valid == nanoseconds


@pytest.mark.parametrize(("name", "name_valid"), LASTING)
@pytest.mark.parametrize(("inode", "attr_valid"), LASTING)
def test_a_name_and_its_inode_are_good_for_a_time_each(
    name: Lasting, name_valid: int, inode: Lasting, attr_valid: int
) -> None:
    found = entry_of(protocol.found(entry(name=name, attributes=inode)))
    assert (found.entry_valid, found.attr_valid) == (name_valid, attr_valid)


def test_what_a_name_leads_to_is_an_inode_with_its_attributes() -> None:
    made = entry((1, 2, 3))
    found = entry_of(protocol.found(made))
    assert (found.nodeid, found.generation) == (1 << 35, 0)
    assert found.attr == attributes_of(protocol.attributes(made)).attr


def test_nothing_of_what_is_guarded_may_be_kept() -> None:
    made = entry(name=Lasting.LONG, attributes=Lasting.LONG, guarded=True)
    assert attributes_of(protocol.attributes(made)).attr_valid == 0
    found = entry_of(protocol.found(made))
    assert (found.nodeid, found.entry_valid, found.attr_valid) == (1 << 35, 0, 0)


@pytest.mark.parametrize(
    ("body", "nanoseconds"), [(protocol.ABSENT, A_SECOND // 2), (protocol.ABSENT_FOR_LONG, 3600 * A_SECOND)]
)
def test_an_absent_name_has_no_inode_and_is_absent_for_a_time(body: bytes, nanoseconds: int) -> None:
    found = entry_of(body)
    assert (found.nodeid, found.entry_valid, found.attr_valid) == (0, nanoseconds, 0)
    assert set(found.attr) == {0}


@pytest.mark.parametrize("length", [*range(1, 18), 255])
def test_an_entry_of_a_listing_ends_at_a_multiple_of_eight(length: int) -> None:
    name = b"n" * length
    body = protocol.listed(name, entry(), 1 << 60)
    assert len(body) == (152 + length + 7) // 8 * 8
    (found,) = listed_in(body)
    assert found == (entry_of(protocol.found(entry())), 1 << 35, 1 << 60, 8, name)


@pytest.mark.parametrize(
    ("mode", "kind"), [(stat.S_IFREG, 8), (stat.S_IFDIR, 4), (stat.S_IFLNK, 10), (stat.S_IFIFO, 1)]
)
def test_an_entry_of_a_listing_has_its_type(mode: int, kind: int) -> None:
    made = Entry(5, status(mode | 0o777), 1, Lasting.LONG, Lasting.LONG)
    (found,) = listed_in(protocol.listed(b"name", made, 1))
    assert found.type == kind


def test_what_is_only_mentioned_has_a_number_and_a_type_but_no_inode() -> None:
    (found,) = listed_in(protocol.listed(b"name", entry(mentioned=True), 9))
    assert (found.ino, found.position, found.type, found.name) == (1 << 35, 9, 8, b"name")
    assert found.entry[:4] == (0, 0, 0, 0)
    assert set(found.entry.attr) == {0}


def test_what_was_opened_has_a_handle_and_flags() -> None:
    assert opened_of(protocol.opened(1 << 40, 3)) == (1 << 40, 3)
    # FOPEN_DIRECT_IO and FOPEN_KEEP_CACHE.
    assert (protocol.DIRECT_IO, protocol.KEEP_CACHE) == (1, 2)


def test_a_size_takes_eight_bytes() -> None:
    assert protocol.written(1 << 20) == struct.pack("=II", 1 << 20, 0)
