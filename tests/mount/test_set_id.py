"""Do a file's privileges go when somebody else changes it? The kernel leaves that to us."""

import os
import stat
import struct
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import conditions
from tests.support.mounted import python
from tests.support.tree import File

pytestmark = pytest.mark.mount

# The work is done by somebody without privileges, who owns the file.
UNPRIVILEGED = """
import os, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
"""
CHANGES = {
    "write": "fd = os.open('file', os.O_WRONLY); os.write(fd, b'x')",
    "truncate": "os.truncate('file', 1)",
    "open with O_TRUNC": "os.open('file', os.O_WRONLY | os.O_TRUNC)",
    "chown": "os.chown('file', -1, os.getgid())",
}


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
