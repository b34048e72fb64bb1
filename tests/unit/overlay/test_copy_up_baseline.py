"""Where the baseline cannot be written, nothing is changed."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.upper.baseline_log import BaselineWriter
from tests.conftest import STANDARD
from tests.support.claims import fails_with
from tests.support.core_driver import CoreDriver
from tests.support.tree import build, capture


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[CoreDriver]:
    driver = CoreDriver(tmp_path / "state", build(tmp_path / "workspace", STANDARD))
    try:
        yield driver
        driver.finish()
    finally:
        driver.abandon()


CHANGES: dict[str, Callable[[CoreDriver], object]] = {
    "write": lambda sandbox: sandbox.append("file", b"more"),
    "truncate": lambda sandbox: sandbox.write("file", b"anew"),
    "chmod": lambda sandbox: sandbox.chmod("file", 0o600),
    "chmod a directory": lambda sandbox: sandbox.chmod("hollow", 0o700),
    "create below": lambda sandbox: sandbox.create("hollow/new"),
    "unlink": lambda sandbox: sandbox.unlink("file"),
    "unlink a hard link": lambda sandbox: sandbox.unlink("hard2"),
    "unlink a symlink": lambda sandbox: sandbox.unlink("link"),
    "rmdir": lambda sandbox: sandbox.rmdir("hollow"),
    "rename": lambda sandbox: sandbox.rename("file", "elsewhere"),
    "rename a directory": lambda sandbox: sandbox.rename("dir", "elsewhere"),
    "rename over a file": lambda sandbox: sandbox.rename("new", "file"),
    "rename over a hard link": lambda sandbox: sandbox.rename("new", "hard2"),
    "rename over a directory": lambda sandbox: sandbox.rename("newdir", "hollow"),
    "rename a hard link": lambda sandbox: sandbox.rename("hard2", "elsewhere"),
    "link": lambda sandbox: sandbox.link("file", "second"),
    "create where a file was deleted": lambda sandbox: sandbox.create("other"),
    "link where a file was deleted": lambda sandbox: sandbox.link("new", "other"),
    "rename to where a file was deleted": lambda sandbox: sandbox.rename("new", "other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_cannot_be_noted_is_not_changed(
    sandbox: CoreDriver, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sandbox.create("new", b"new")
    sandbox.mkdir("newdir")
    sandbox.chmod("hard1", 0o640)
    sandbox.unlink("other")
    before = capture(sandbox.upper)
    with monkeypatch.context() as patch:
        patch.setattr(BaselineWriter, "_append", full)
        with fails_with(errno.ENOSPC):
            CHANGES[change](sandbox)
    assert capture(sandbox.upper) == before
    CHANGES[change](sandbox)
    assert capture(sandbox.upper) != before


def test_without_a_baseline_nothing_is_noted_and_everything_works(tmp_path: Path) -> None:
    workspace = build(tmp_path / "workspace", STANDARD)
    for name in ("upper", "work", "index"):
        (tmp_path / name).mkdir()
    overlay = Overlay(
        OverlayPaths([workspace], tmp_path / "upper", tmp_path / "work", tmp_path / "index"), [], []
    )
    try:
        overlay.unlink(1, b"file")
        assert overlay.lookup(1, b"file") is None
    finally:
        overlay.close()


def test_a_deleted_file_that_cannot_be_read_is_noted(
    sandbox: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(HostDir, "open_quietly", refused)
        sandbox.unlink("file")
    assert not sandbox.exists("file")
    assert b'"path":"file"' in (sandbox.baseline / "log").read_bytes()
