"""Do a file's privileges go when somebody else changes it? The kernel leaves that to us."""

import os
import stat
import struct
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import conditions
from tests.support.mounted import companion, python, says
from tests.support.syscalls import statx_mode
from tests.support.tree import File

# The work is done by somebody without privileges, who owns the file.
UNPRIVILEGED = """
import os, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
"""
WRITE_WHEN_TOLD = """
fd = os.open("file", os.O_WRONLY)
print("open")
input()
os.write(fd, b"x")
print("written")
"""
CHANGES = {
    "write": "fd = os.open('file', os.O_WRONLY); os.write(fd, b'x')",
    "write after reading": "fd = os.open('file', os.O_RDWR); os.read(fd, 1); os.write(fd, b'x')",
    "append": "fd = os.open('file', os.O_WRONLY | os.O_APPEND); os.write(fd, b'x')",
    "truncate": "os.truncate('file', 1)",
    "open with O_TRUNC": "os.open('file', os.O_WRONLY | os.O_TRUNC)",
    "chown": "os.chown('file', -1, os.getgid())",
}


# Root without privileges, as in a confined run.
POWERLESS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capset(header, nothing) == 0
"""


def prepared(path: Path, mode: int) -> None:
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
    path.chmod(mode)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["lower", "upper"])
def test_set_id_bits_go_with_a_change_by_somebody_without_privileges(
    mount: Mount, change: str, where: str
) -> None:
    options = ["--allow-other"] if os.getuid() == 0 else []
    view = mount({"file": File("text", mode=0o6755)}, *options)
    prepared((view.lower if where == "lower" else view.root) / "file", 0o6755)
    view.host_changed()
    assert stat.S_IMODE((view.root / "file").stat().st_mode) == 0o6755
    python(UNPRIVILEGED + CHANGES[change], cwd=view.root)
    # Asked for alone, as `stat -c %A` does, and with everything else.
    assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o755
    assert stat.S_IMODE((view.root / "file").stat().st_mode) == 0o755


def test_set_group_id_without_execution_stays(mount: Mount) -> None:
    options = ["--allow-other"] if os.getuid() == 0 else []
    view = mount({"file": "text"}, *options)
    prepared(view.root / "file", 0o2644)
    python(UNPRIVILEGED + CHANGES["write"], cwd=view.root)
    assert stat.S_IMODE((view.root / "file").stat().st_mode) == 0o2644


@pytest.mark.parametrize("change", CHANGES)
def test_capabilities_go_with_a_change(mount: Mount, change: str) -> None:
    conditions.require_root()
    view = mount({"file": "text"}, "--allow-other")
    prepared(view.root / "file", 0o755)
    # One permitted capability, in the form of version 2.
    os.setxattr(view.root / "file", "security.capability", struct.pack("<IIIII", 0x02000000, 1, 0, 0, 0))
    assert "security.capability" in os.listxattr(view.root / "file")
    python(UNPRIVILEGED + CHANGES[change], cwd=view.root)
    assert "security.capability" not in os.listxattr(view.root / "file")


def test_set_id_bits_set_while_a_file_is_open_go_with_the_next_write(mount: Mount) -> None:
    options = ["--allow-other"] if os.getuid() == 0 else []
    view = mount({"file": "text"}, *options)
    prepared(view.root / "file", 0o755)
    with companion(UNPRIVILEGED + WRITE_WHEN_TOLD, cwd=view.root) as writer:
        assert says(writer) == "open"
        (view.root / "file").chmod(0o6755)
        assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o6755
        assert writer.stdin is not None
        print("write", file=writer.stdin, flush=True)
        assert says(writer) == "written"
        assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o755


@pytest.mark.parametrize("change", sorted(set(CHANGES) - {"chown"}))
def test_set_id_bits_go_with_a_change_by_root_without_privileges(mount: Mount, change: str) -> None:
    conditions.require_root()
    view = mount({"file": File("text", mode=0o6755)})
    assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o6755
    python(POWERLESS + CHANGES[change], cwd=view.root)
    assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o755


def test_set_id_bits_stay_with_a_change_by_root(mount: Mount) -> None:
    conditions.require_root()
    view = mount({"file": File("text", mode=0o6755)})
    for change in sorted(set(CHANGES) - {"chown"}):
        python("import os\n" + CHANGES[change], cwd=view.root)
        assert stat.S_IMODE(statx_mode(os.fsencode(view.root / "file"))) == 0o6755
