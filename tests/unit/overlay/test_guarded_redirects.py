"""Is a renamed directory judged by where it comes from in a directory that no rule is about?"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.decisions import PolicyDenied
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, Entry
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from tests.support.silent import Silent
from tests.support.tree import Symlink, Tree, build


class Renamed:
    """A view in which `vault` was renamed to `folder/pub`, and the guard that shows it."""

    def __init__(self, place: Path) -> None:
        tree: Tree = {"vault/secret": "", "folder/link": Symlink("pub/../../../x")}
        self.workspace = build(place / "workspace", tree)
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.paths = OverlayPaths([self.workspace], *parts)
        self.start()
        folder = self.find(ROOT_INODE, b"folder")
        self.guard.rename(ROOT_INODE, b"vault", folder.ino, b"pub", 0, ANYBODY)

    def start(self) -> None:
        overlay = Overlay(self.paths)
        links = LinkGuard(overlay, Silent(), Symlinks.GUARD, os.fsencode(self.workspace), b"/view")
        self.guard = Guard(overlay, self.policy(), Silent(), links)

    def restart(self) -> None:
        """Serve the view anew: no redirect has been met yet."""
        self.guard.close()
        self.start()

    def policy(self, *rules: Rule) -> Compiled:
        return Compiled(Policy(rules), str(self.workspace))

    def keep_back(self, mode: Mode) -> None:
        self.guard.set_policy(self.policy(Rule("./vault", mode, RuleSource(SourceKind.COMMAND_LINE))))

    def find(self, parent: int, name: bytes) -> Entry:
        entry = self.guard.lookup(parent, name, ANYBODY)
        assert entry is not None
        return entry

    def listed(self) -> dict[bytes, Entry]:
        """What is in the folder, as listed."""
        handle = self.guard.opendir(self.find(ROOT_INODE, b"folder").ino, ANYBODY)
        found = {name: entry for name, entry, _ in self.guard.readdir(handle, 0)}
        self.guard.releasedir(handle)
        return {name: entry for name, entry in found.items() if name not in (b".", b"..")}


@pytest.fixture
def renamed(tmp_path: Path) -> Iterator[Renamed]:
    made = Renamed(tmp_path)
    yield made
    made.guard.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_renamed_directory_is_not_listed_once_its_old_place_is_hidden(
    renamed: Renamed, restarted: bool
) -> None:
    assert set(renamed.listed()) == {b"link", b"pub"}
    if restarted:
        renamed.restart()
    renamed.keep_back(Mode.HIDE)
    assert set(renamed.listed()) == {b"link"}


@pytest.mark.parametrize("restarted", [False, True])
def test_the_kernel_asks_about_a_renamed_directory_once_its_old_place_is_denied(
    renamed: Renamed, restarted: bool
) -> None:
    assert not renamed.listed()[b"pub"].guarded
    if restarted:
        renamed.restart()
    renamed.keep_back(Mode.DENY)
    assert renamed.listed()[b"pub"].guarded


def test_a_link_does_not_tell_whether_a_hidden_renamed_directory_is_there(renamed: Renamed) -> None:
    link = renamed.listed()[b"link"]
    # The way over the directory leaves the view, so the link is refused where the directory is seen.
    with pytest.raises(PolicyDenied):
        renamed.guard.readlink(link.ino, ANYBODY)
    renamed.keep_back(Mode.HIDE)
    assert renamed.guard.readlink(link.ino, ANYBODY) == b"pub/../../../x"


def test_removing_a_directory_in_which_only_a_hidden_renamed_one_is_left_is_a_denial(
    renamed: Renamed,
) -> None:
    folder = renamed.find(ROOT_INODE, b"folder")
    renamed.guard.unlink(folder.ino, b"link", ANYBODY)
    renamed.keep_back(Mode.HIDE)
    with pytest.raises(PolicyDenied) as refused:
        renamed.guard.rmdir(ROOT_INODE, b"folder", ANYBODY)
    assert refused.value.errno == errno.EACCES
