"""Is a rename one step, also where the upper's filesystem knows no flags?"""

import errno
import os
import stat
from pathlib import Path

import pytest

from sandboxfs.hostfs import syscalls
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller
from sandboxfs.overlay.overlay import Overlay

ME = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())


@pytest.mark.parametrize("answer", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_flags_a_new_file_is_renamed_in_one_step(
    overlay: Overlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(syscalls, "rename", refuse)
    monkeypatch.setattr(HostDir, "link", refuse)
    for name in (b"one", b"two"):
        opened, _ = overlay.create(ROOT_INODE, name, stat.S_IFREG | 0o644, os.O_RDWR, ME)
        overlay.release(opened.handle)
        overlay.rename(ROOT_INODE, name, ROOT_INODE, name + b" moved", 0)
    assert sorted(os.listdir(tmp_path / "upper")) == ["one moved", "two moved"]


def test_a_new_file_replaces_another(overlay: Overlay, tmp_path: Path) -> None:
    for name in (b"one", b"two"):
        opened, _ = overlay.create(ROOT_INODE, name, stat.S_IFREG | 0o644, os.O_RDWR, ME)
        overlay.write(opened.handle, 0, name)
        overlay.release(opened.handle)
    overlay.rename(ROOT_INODE, b"one", ROOT_INODE, b"two", 0)
    assert [entry.name for entry in (tmp_path / "upper").iterdir()] == ["two"]
    assert (tmp_path / "upper" / "two").read_bytes() == b"one"
