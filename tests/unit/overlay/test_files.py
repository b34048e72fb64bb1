"""Descriptors are exchanged under open files: what fails leaves handles and layers as they were."""

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay import copy_up
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, AttributeChange
from sandboxfs.overlay.nodes import Node
from sandboxfs.overlay.overlay import Overlay
from sandboxfs.upper.baseline import Baseline
from tests.support import conditions
from tests.support.claims import fails_with
from tests.support.core_driver import CoreDriver
from tests.support.core_files import CoreFile
from tests.support.drivers import OpenFile
from tests.support.tree import build


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[CoreDriver]:
    driver = CoreDriver(tmp_path / "state", build(tmp_path / "workspace", {"file": "lower text\n"}))
    try:
        yield driver
        driver.finish()
    finally:
        driver.abandon()


def no_descriptors(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_copy_that_readers_cannot_be_pointed_at_does_not_appear(
    sandbox: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sandbox.open("file", os.O_RDONLY) as reader:
        with monkeypatch.context() as patch, fails_with(errno.EMFILE):
            patch.setattr(copy_up, "open_readable", no_descriptors)
            reader.chmod(0o600)
        assert os.listdir(sandbox.upper) == []
        assert reader.pread(100, 0) == b"lower text\n"
        reader.chmod(0o600)
        assert reader.stat().st_mode & 0o7777 == 0o600


def test_a_new_file_has_the_capabilities_that_it_is_given(sandbox: CoreDriver) -> None:
    conditions.require_root()
    # One permitted capability, in the form of version 2.
    capability = struct.pack("<IIIII", 0x02000000, 1, 0, 0, 0)
    with sandbox.open("new", os.O_CREAT | os.O_WRONLY) as file:
        with fails_with(errno.ENODATA):
            file.getxattr("security.capability")
        file.setxattr("security.capability", capability)
        assert file.getxattr("security.capability") == capability


# What the host moves away while the kernel holds its name for good.

VERBS: dict[str, Callable[[Overlay, int], object]] = {
    "open": lambda fs, ino: fs.open(ino, os.O_RDONLY, ANYBODY),
    "open for writing": lambda fs, ino: fs.open(ino, os.O_WRONLY, ANYBODY),
    "getattr": lambda fs, ino: fs.getattr(ino),
    "chmod": lambda fs, ino: fs.setattr(ino, AttributeChange(mode=0o600), None, ANYBODY),
    "readlink": lambda fs, ino: fs.readlink(ino),
    "getxattr": lambda fs, ino: fs.getxattr(ino, b"user.colour"),
    "listxattr": lambda fs, ino: fs.listxattr(ino),
    "setxattr": lambda fs, ino: fs.setxattr(ino, b"user.colour", b"red", 0),
}


@pytest.mark.parametrize("deed", ["moved", "removed"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_not_where_it_was_is_looked_up_again_and_not_called_absent(
    sandbox: CoreDriver, verb: str, deed: str
) -> None:
    """The name may lead to another file by now: only looking it up can tell that it leads nowhere."""
    name = "link" if verb == "readlink" else "file"
    if verb == "readlink":
        (sandbox.lower / name).symlink_to("file")
    found = sandbox.fs.lookup(ROOT_INODE, os.fsencode(name))
    assert found is not None
    try:
        (sandbox.lower / name).rename(sandbox.lower / "elsewhere")
        if deed == "removed":
            (sandbox.lower / "elsewhere").unlink()
        sandbox.host_changed()
        with fails_with(errno.ESTALE):
            VERBS[verb](sandbox.fs, found.ino)
        assert os.listdir(sandbox.upper) == []
    finally:
        sandbox.fs.forget(found.ino, 1)


# A review takes entries out of the upper under open files. Here the test itself does what it does.


def node_of(sandbox: CoreDriver, file: OpenFile) -> Node:
    assert isinstance(file, CoreFile)
    return sandbox.fs._inodes.node(file.ino)


def commit(sandbox: CoreDriver, file: OpenFile, name: str) -> bool:
    """Put the upper's file into the workspace, where the node then finds it."""
    (sandbox.upper / name).rename(sandbox.lower / name)
    sandbox.host_changed()
    node = node_of(sandbox, file)
    status = (sandbox.lower / name).stat()
    node.upper = False
    node.host_dev, node.host_ino = status.st_dev, status.st_ino
    return sandbox.fs._files.rebind(node)


def discard_new(sandbox: CoreDriver, file: OpenFile, name: str, kept: Path) -> bool:
    """Put a file that only the sandbox has away."""
    node = node_of(sandbox, file)
    node.gone = (sandbox.upper / name).stat()
    node.upper = False
    (sandbox.upper / name).rename(kept)
    return sandbox.fs._files.rebind(node)


def test_a_handle_goes_on_writing_after_its_file_was_committed(sandbox: CoreDriver) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"FIRST", 0)
        assert commit(sandbox, file, "file")
        assert os.listdir(sandbox.upper) == []
        assert file.pread(100, 0) == b"FIRST text\n"
        file.fsync()
        assert os.listdir(sandbox.upper) == []
        file.pwrite(b"AGAIN", 0)
        file.fsync()
        assert file.pread(100, 0) == b"AGAIN text\n"
        assert (sandbox.upper / "file").read_bytes() == b"AGAIN text\n"
    assert (sandbox.lower / "file").read_bytes() == b"FIRST text\n"


def test_a_handle_goes_on_cutting_after_its_file_was_committed(sandbox: CoreDriver) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"FIRST", 0)
        assert commit(sandbox, file, "file")
        file.truncate(5)
        assert file.pread(100, 0) == b"FIRST"
        file.pwrite(b"!", 5)
    assert (sandbox.upper / "file").read_bytes() == b"FIRST!"


def test_what_was_committed_is_noted_when_it_is_changed_again(sandbox: CoreDriver) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"FIRST", 0)
        assert commit(sandbox, file, "file")
        file.pwrite(b"AGAIN", 0)
    with HostDir.at(sandbox.baseline) as directory:
        baseline = Baseline.load(directory)
        noted = baseline.get(b"file")
        assert noted is not None
        assert baseline.content(noted) == b"FIRST text\n"


def test_a_handle_of_a_discarded_new_file_goes_on_and_leaves_what_was_put_away(
    sandbox: CoreDriver, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with sandbox.open("new", os.O_CREAT | os.O_RDWR) as file:
        file.pwrite(b"written", 0)
        assert discard_new(sandbox, file, "new", kept)
        assert file.pread(100, 0) == b"written"
        file.pwrite(b"WRITTEN", 0)
        file.chmod(0o600)
        assert file.pread(100, 0) == b"WRITTEN"
        assert not sandbox.exists("new")
    assert kept.read_bytes() == b"written"
    assert kept.stat().st_mode & 0o7777 == 0o644
    assert os.listdir(sandbox.upper) == []


def test_a_handle_keeps_what_it_had_when_there_is_nothing_else(sandbox: CoreDriver) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"FIRST", 0)
        (sandbox.upper / "file").rename(sandbox.upper / "elsewhere")
        assert not sandbox.fs._files.rebind(node_of(sandbox, file))
        file.pwrite(b"AGAIN", 0)
        assert file.pread(100, 0) == b"AGAIN text\n"
    assert (sandbox.upper / "elsewhere").read_bytes() == b"AGAIN text\n"


def test_a_file_that_nobody_has_open_needs_no_descriptors(sandbox: CoreDriver) -> None:
    sandbox.chmod("file", 0o600)
    sandbox.remembers = True
    sandbox.stat("file")
    ino = next(iter(sandbox.references))
    assert sandbox.fs._files.rebind(sandbox.fs._inodes.node(ino))
