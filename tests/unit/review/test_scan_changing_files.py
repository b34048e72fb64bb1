"""What a scan and a diff do with files that do not stand still."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.hostfs import tree
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import ChangedWhileRead, DirTree, Unreadable
from sandboxfs.review.patch import load
from sandboxfs.review.scan import scan
from tests.unit.conftest import Review


def writing_while_read(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> None:
    """Have *path* written to in the middle of the next *times* readings."""
    read: Callable[[int, int], bytes] = tree._read_whole
    left = [times]

    def reading(fd: int, size: int) -> bytes:
        data = read(fd, size)
        if left[0] and os.fstat(fd).st_ino == path.stat().st_ino:
            left[0] -= 1
            with path.open("ab") as file:
                file.write(b"more\n")
        return data

    monkeypatch.setattr(tree, "_read_whole", reading)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"start\n")
    return path


def test_a_file_that_changes_while_it_is_read_is_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing_while_read(monkeypatch, file, 1)
    with HostDir.at(file.parent) as directory:
        assert DirTree(directory).read(b"file") == b"start\nmore\n"


def test_a_file_that_goes_on_changing_is_said_to(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing_while_read(monkeypatch, file, 9)
    with HostDir.at(file.parent) as directory, pytest.raises(ChangedWhileRead) as raised:
        DirTree(directory).read(b"file")
    assert raised.value.data == b"start\nmore\n"


def test_a_finding_of_a_file_that_goes_on_changing_says_so(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({"a": "old\n", "b": "old\n"})
    sandbox.write("a", b"new\n")
    sandbox.write("b", b"new\n")
    writing_while_read(monkeypatch, sandbox.upper / "a", 9)
    assert [(finding.path, finding.changing) for finding in sandbox.findings()] == [
        (b"a", True),
        (b"b", False),
    ]


def test_contents_that_go_on_changing_are_shown_as_they_were_read_last(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"new content\n")
    with sandbox.layers() as layers:
        (finding,) = scan(layers)
        writing_while_read(monkeypatch, sandbox.upper / "a", 9)
        contents = load(finding)
    assert contents.changing
    assert contents.problem is None
    assert contents.new == b"new content\nmore\n"


def test_a_file_that_is_gone_when_it_is_read_is_a_problem_and_no_failure(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"new content\n")
    with sandbox.layers() as layers:
        (finding,) = scan(layers)
        (sandbox.upper / "a").unlink()
        assert load(finding).problem == "No such file or directory"


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink"])
def test_what_is_no_file_any_more_is_neither_followed_nor_waited_for(file: Path, kind: str) -> None:
    file.unlink()
    match kind:
        case "fifo":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case _:
            file.symlink_to("/etc/passwd")
    with HostDir.at(file.parent) as directory, pytest.raises(Unreadable):
        DirTree(directory).read(b"file")


def test_a_scan_survives_whatever_disappears_under_it(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({f"d{n}/f": "old\n" for n in range(8)})
    for number in range(8):
        sandbox.write(f"d{number}/f", b"new\n")
    entries = DirTree.entries

    def disappearing(self: DirTree, path: bytes) -> object:
        for entry in list(entries(self, path)):
            if path == b"" and entry.name == "d3":
                (sandbox.upper / "d3/f").unlink(missing_ok=True)
                if (sandbox.upper / "d3").exists():
                    (sandbox.upper / "d3").rmdir()
            yield entry

    monkeypatch.setattr(DirTree, "entries", disappearing)
    assert [finding.path for finding in sandbox.findings()] == [b"d%d/f" % n for n in range(8) if n != 3]


def test_a_scan_survives_a_symlink_that_becomes_something_else_under_it(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({})
    sandbox.symlink("target", "a")
    sandbox.symlink("target", "b")
    readlink = DirTree.readlink

    def replaced(self: DirTree, path: bytes) -> bytes:
        (sandbox.upper / "a").unlink(missing_ok=True)
        (sandbox.upper / "a").write_text("file")
        return readlink(self, path)

    monkeypatch.setattr(DirTree, "readlink", replaced)
    assert sandbox.found() == ["added b"]
