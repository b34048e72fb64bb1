"""Is the kernel told again only of what it does not know, and is what is only mentioned right?"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, AttributeChange, Entry
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from tests.support.silent import Silent
from tests.support.tree import HardLink, Symlink, Tree, build

FILES = [f"file{number}" for number in range(20)]
TREE: Tree = {
    **{name: name for name in FILES},
    "sub/inner": "",
    "link": Symlink("file1"),
    "one": "two names",
    "other": HardLink("one"),
}


class Asked:
    """An overlay whose root is looked at as the kernel does it."""

    def __init__(self, place: Path, watches: int = 100, sealed: list[Path] | None = None) -> None:
        self.workspace = build(place / "workspace", TREE)
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.fs = Overlay(OverlayPaths([self.workspace], *parts), sealed=sealed or [], watches=watches)
        self.handle = self.fs.opendir(ROOT_INODE)

    def look_up(self, *names: str) -> dict[str, Entry]:
        found = {}
        for name in names:
            entry = self.fs.lookup(ROOT_INODE, os.fsencode(name))
            assert entry is not None
            found[name] = entry
        return found

    def listed(self, *, brief: bool) -> dict[str, Entry]:
        entries = self.fs.readdir(self.handle, 0, brief=brief)
        return {os.fsdecode(name): entry for name, entry, _ in entries if name not in (b".", b"..")}

    def mentioned(self) -> set[str]:
        return {name for name, entry in self.listed(brief=True).items() if entry.mentioned}

    def familiar(self) -> bool:
        return self.fs.familiar(self.handle, 0)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path)
    yield made
    made.fs.close()


def test_a_file_that_was_looked_up_is_only_mentioned(asked: Asked) -> None:
    asked.look_up(*FILES[:3])
    assert asked.mentioned() == set(FILES[:3])


def test_a_mention_has_the_number_and_the_type_of_the_file(asked: Asked) -> None:
    known = asked.look_up(*FILES)
    listed = asked.listed(brief=True)
    assert {name: listed[name].ino for name in FILES} == {name: known[name].ino for name in FILES}
    assert all(stat.S_ISREG(listed[name].stat.st_mode) for name in FILES)


def test_nothing_is_only_mentioned_unless_that_was_asked_for(asked: Asked) -> None:
    asked.look_up(*FILES)
    listed = asked.listed(brief=False)
    assert not any(entry.mentioned for entry in listed.values())
    assert {name: listed[name].stat.st_size for name in FILES} == {name: len(name) for name in FILES}


def test_directories_links_and_files_with_two_names_are_told_in_full(asked: Asked) -> None:
    asked.look_up("sub", "link", "one", "other")
    assert asked.mentioned() == set()


def test_a_file_of_the_upper_is_told_in_full(asked: Asked) -> None:
    known = asked.look_up(*FILES[:3])
    asked.fs.setattr(known["file1"].ino, AttributeChange(mode=0o600), None, ANYBODY)
    listed = asked.listed(brief=True)
    assert not listed["file1"].mentioned
    assert stat.S_IMODE(listed["file1"].stat.st_mode) == 0o600
    assert listed["file0"].mentioned


def test_a_file_that_the_kernel_forgot_is_told_in_full(asked: Asked) -> None:
    known = asked.look_up(*FILES[:3])
    asked.fs.forget(known["file1"].ino, 1)
    assert asked.mentioned() == {"file0", "file2"}


def test_a_file_that_the_host_replaced_is_told_in_full(asked: Asked) -> None:
    asked.look_up(*FILES[:3])
    (asked.workspace / "new").write_text("something else")
    (asked.workspace / "new").rename(asked.workspace / "file1")
    listed = asked.listed(brief=True)
    assert not listed["file1"].mentioned
    assert listed["file1"].stat.st_size == len("something else")


def test_a_file_that_the_host_renamed_is_told_in_full(asked: Asked) -> None:
    asked.look_up(*FILES[:3])
    (asked.workspace / "file1").rename(asked.workspace / "moved")
    listed = asked.listed(brief=True)
    assert not listed["moved"].mentioned
    assert "file1" not in listed


def test_a_file_that_was_deleted_or_renamed_in_the_view_is_not_mentioned_any_more(asked: Asked) -> None:
    asked.look_up(*FILES[:3])
    asked.fs.unlink(ROOT_INODE, b"file0")
    asked.fs.rename(ROOT_INODE, b"file1", ROOT_INODE, b"moved", 0)
    listed = asked.listed(brief=True)
    assert not listed.keys() & {"file0", "file1"}
    assert not listed["moved"].mentioned
    assert listed["file2"].mentioned


def test_a_hidden_name_is_not_mentioned_though_the_kernel_knew_the_file_by_another(asked: Asked) -> None:
    rules = [Rule("**/*.secret", Mode.HIDE, RuleSource(SourceKind.COMMAND_LINE))]
    links = LinkGuard(asked.fs, Silent(), Symlinks.KEEP, os.fsencode(asked.workspace), b"/view")
    guard = Guard(asked.fs, Compiled(Policy(tuple(rules)), str(asked.workspace)), Silent(), links)
    for name in FILES:
        assert guard.lookup(ROOT_INODE, os.fsencode(name), ANYBODY) is not None
    (asked.workspace / "file1").rename(asked.workspace / "file1.secret")
    handle = guard.opendir(ROOT_INODE, ANYBODY)
    for _ in range(3):
        names = {name for name, _, _ in guard.readdir(handle, 0, brief=True)}
        assert b"file2" in names
        assert not names & {b"file1", b"file1.secret"}


def test_a_mention_counts_no_reference(asked: Asked) -> None:
    known = asked.look_up("file1")
    assert asked.mentioned() == {"file1"}
    assert asked.fs.forget(known["file1"].ino, 1), "the last reference was another"


def test_a_directory_becomes_familiar_when_much_of_it_was_looked_up(asked: Asked) -> None:
    asked.look_up(*FILES[:3])
    assert not asked.familiar()
    asked.look_up(*FILES)
    assert asked.familiar()


def test_a_directory_that_was_listed_in_full_is_familiar(asked: Asked) -> None:
    assert not asked.familiar()
    asked.listed(brief=False)
    assert asked.familiar()


def test_at_its_end_there_is_nothing_to_be_familiar_with(asked: Asked) -> None:
    asked.look_up(*FILES)
    *_, (_, _, before_last), (_, _, last) = asked.fs.readdir(asked.handle, 0, brief=True)
    assert asked.fs.familiar(asked.handle, before_last)
    assert not asked.fs.familiar(asked.handle, last)


def test_a_directory_is_not_familiar_for_longer_than_the_answers_are_good(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.look_up(*FILES)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 40)
    assert not asked.familiar()
    asked.listed(brief=False)
    assert asked.familiar()


def test_a_directory_that_cannot_be_watched_is_never_familiar(tmp_path: Path) -> None:
    asked = Asked(tmp_path, watches=0)
    asked.look_up(*FILES)
    assert not asked.familiar()
    asked.fs.close()


def test_a_directory_with_a_sealed_place_is_never_familiar(tmp_path: Path) -> None:
    asked = Asked(tmp_path, sealed=[tmp_path / "workspace" / "sub"])
    asked.look_up(*FILES)
    assert not asked.familiar()
    asked.fs.close()
