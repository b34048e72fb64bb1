"""Does the kernel remember a listing only as long as the policy shows it so?"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Mode, Policy, Rule, RuleSource, SourceKind
from tests.support.silent import Silent
from tests.support.tree import build


class Guarded:
    """A guard that is asked for listings, and the policies that it may have."""

    def __init__(self, place: Path) -> None:
        self.workspace = build(place / "workspace", {"open": "", "a.secret": "", "dir/b.secret": ""})
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.fs = Overlay(OverlayPaths([self.workspace], *parts), watches=100)
        links = LinkGuard(self.fs, Silent(), Symlinks.KEEP, os.fsencode(self.workspace), b"/view")
        self.guard = Guard(self.fs, self.policy(), Silent(), links)

    def policy(self, *hidden: str) -> Compiled:
        rules = tuple(Rule(pattern, Mode.HIDE, RuleSource(SourceKind.COMMAND_LINE)) for pattern in hidden)
        return Compiled(Policy(rules), str(self.workspace))

    def listed(self, ino: int = ROOT_INODE) -> int:
        """The handle of a listing that was read to its end."""
        handle = self.guard.opendir(ino, ANYBODY)
        for _, entry, _ in self.guard.readdir(handle, 0):
            self.guard.forget(entry.ino, 0)
        return handle


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.guard.close()


def test_a_listing_lasts_while_the_policy_does(guarded: Guarded) -> None:
    assert guarded.guard.listing_lasts(guarded.listed())


def test_a_listing_under_way_does_not_last_when_the_policy_changes(guarded: Guarded) -> None:
    handle = guarded.listed()
    guarded.guard.set_policy(guarded.policy("**/*.secret"))
    assert not guarded.guard.listing_lasts(handle)
    assert guarded.guard.listing_lasts(guarded.listed())


@pytest.mark.parametrize("change", ["hides", "shows"])
def test_what_was_listed_goes_out_of_the_kernels_memory_when_the_policy_changes(
    guarded: Guarded, change: str
) -> None:
    hiding, showing = guarded.policy("**/*.secret"), guarded.policy()
    guarded.guard.set_policy(showing if change == "hides" else hiding)
    guarded.guard.releasedir(guarded.listed())
    changed = guarded.guard.set_policy(hiding if change == "hides" else showing)
    assert ShownInode(ROOT_INODE, []) in changed


def test_what_was_listed_under_a_policy_before_the_last_goes_too(guarded: Guarded) -> None:
    guarded.guard.releasedir(guarded.listed())
    assert guarded.guard.set_policy(guarded.policy()) == []
    assert ShownInode(ROOT_INODE, []) in guarded.guard.set_policy(guarded.policy("**/*.secret"))


def test_what_the_kernel_forgot_is_not_remembered_as_listed(guarded: Guarded) -> None:
    entry = guarded.guard.lookup(ROOT_INODE, b"dir", ANYBODY)
    assert entry is not None
    guarded.guard.releasedir(guarded.listed(entry.ino))
    guarded.guard.forget(entry.ino, 1)
    changed = guarded.guard.set_policy(guarded.policy("**/*.secret"))
    assert entry.ino not in {shown.ino for shown in changed}
