"""Is it known which filesystems have no disk to wait for?"""

import os

from sandboxfs.hostfs.identity import is_in_memory, type_of


def test_what_lies_in_memory_is_told_from_what_does_not() -> None:
    memory, other = os.memfd_create("memory"), os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert is_in_memory(memory)
        assert not is_in_memory(other)
        assert type_of(other) == 0x9FA0
    finally:
        os.close(memory)
        os.close(other)


def test_of_what_is_not_open_nothing_is_known() -> None:
    assert type_of(-1) == 0
    assert not is_in_memory(-1)
