"""Does a redirect show, under another name, what a rule keeps back where it comes from?

The redirects here are written behind the back of whoever serves the view, as an imported archive or another
program of the user could have written them; or they were left by a rename that the rules of then allowed.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support.archived import Parts, directory, honest
from tests.support.claims import fails_with
from tests.support.guarded import GuardedMount, rule_options
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounted import package_found
from tests.support.mounts import detach_mount
from tests.support.tree import Tree, build

TREE: Tree = {
    "vault/secret": "secret\n",
    "vault/deep/secret": "secret\n",
    "vault/open": "open\n",
    "folder/file": "f\n",
}


def redirected(guarded: Guarded, *rules: str, to: str = "vault", at: str = "folder/pub") -> GuardedMount:
    """A mount in which the directory *at* is said to come from *to*."""
    mount = guarded(TREE, *rules)
    (mount.root / at).mkdir()
    (mount.root / at / "made").write_text("made\n")
    mount.stop()
    os.removexattr(mount.upper / at, "user.overlay.opaque")
    os.setxattr(mount.upper / at, "user.overlay.redirect", os.fsencode("/" + to))
    mount.start()
    return mount


def test_a_redirect_to_a_hidden_directory_shows_nothing(guarded: Guarded) -> None:
    mount = redirected(guarded, "vault=hide")
    assert os.listdir(mount.root / "folder") == ["file"]
    attempts: list[Callable[[Path], object]] = [
        os.stat,
        os.listdir,
        lambda path: os.open(path / "secret", os.O_RDONLY),
        lambda path: os.open(path, os.O_PATH),
        lambda path: os.rename(path, path.parent / "other"),
        lambda path: os.rmdir(path),
    ]
    for attempt in attempts:
        with fails_with(errno.ENOENT):
            attempt(mount.root / "folder/pub")
    with fails_with(errno.EACCES):
        os.mkdir(mount.root / "folder/pub")
    assert (mount.root / "folder/file").read_text() == "f\n"


def test_a_redirect_shows_nothing_that_is_hidden_in_the_directory_it_leads_to(guarded: Guarded) -> None:
    mount = redirected(guarded, "vault/secret=hide", "vault/deep/secret=hide")
    pub = mount.root / "folder/pub"
    assert sorted(os.listdir(pub)) == ["deep", "made", "open"]
    assert os.listdir(pub / "deep") == []
    for path in (pub / "secret", pub / "deep/secret"):
        with fails_with(errno.ENOENT):
            path.read_text()
    assert (pub / "open").read_text() == "open\n"


@pytest.mark.parametrize(
    "rule", ["vault=hide", "vault=ro", "vault/deep/secret=deny", "vault/**/secret=hide", "vault/*=hide"]
)
def test_a_commit_marks_what_it_would_move_out_of_the_reach_of_a_rule(guarded: Guarded, rule: str) -> None:
    mount = redirected(guarded, rule)
    for words in (("commit", "--dry-run"), ("diff", "--name-status")):
        told = run_sandboxfs(words[0], "-s", "test", *words[1:], state=mount.state)
        lines = told.stdout.splitlines()
        assert [line for line in lines if "vault" in line and "released" in line], told.stdout


def test_a_commit_marks_no_rename_within_the_reach_of_the_same_rules(guarded: Guarded) -> None:
    mount = redirected(guarded, "**/secret=hide", "other=hide")
    told = run_sandboxfs("commit", "-s", "test", "--dry-run", state=mount.state)
    assert "vault" in told.stdout
    assert "released" not in told.stdout


def test_a_redirect_into_a_hidden_directory_shows_nothing(guarded: Guarded) -> None:
    mount = redirected(guarded, "vault=hide", to="vault/deep")
    with fails_with(errno.ENOENT):
        (mount.root / "folder/pub/secret").read_text()


def test_a_redirect_shows_denied_content_to_nobody_and_read_only_content_to_no_writer(
    guarded: Guarded,
) -> None:
    mount = redirected(guarded, "vault/secret=deny", "vault/open=ro")
    pub = mount.root / "folder/pub"
    with fails_with(errno.EACCES):
        (pub / "secret").read_text()
    for attempt in (
        lambda: (pub / "open").write_text("changed"),
        lambda: os.unlink(pub / "open"),
        lambda: os.rename(pub / "open", pub / "other"),
        lambda: os.link(pub / "open", pub / "other"),
        lambda: os.chmod(pub / "open", 0o777),
    ):
        with fails_with(errno.EROFS):
            attempt()
    assert (pub / "open").read_text() == "open\n"


def test_a_redirect_below_another_is_judged_by_every_place_it_comes_from(guarded: Guarded) -> None:
    mount = guarded(TREE, "vault/secret=hide", "folder/pub/x=hide", "folder/pub/open=hide")
    os.mkdir(mount.root / "top")
    mount.stop()
    os.removexattr(mount.upper / "top", "user.overlay.opaque")
    os.setxattr(mount.upper / "top", "user.overlay.redirect", b"/folder")
    os.mkdir(mount.upper / "top/pub")
    os.setxattr(mount.upper / "top/pub", "user.overlay.redirect", b"/vault")
    mount.start()
    assert sorted(os.listdir(mount.root / "top/pub")) == ["deep"]
    for name in ("secret", "open", "x"):
        with fails_with(errno.ENOENT):
            (mount.root / "top/pub" / name).read_text()


def test_a_rule_that_came_after_a_rename_holds_at_the_new_place(guarded: Guarded) -> None:
    mount = guarded(TREE)
    os.rename(mount.root / "vault", mount.root / "moved")
    moved = mount.root / "moved"
    assert (moved / "secret").read_text() == "secret\n"
    with open(moved / "deep/secret") as held:
        mount.allow("vault/secret", "hide")
        mount.allow("vault/deep", "deny")
        assert sorted(os.listdir(moved)) == ["deep", "open"]
        with fails_with(errno.ENOENT):
            (moved / "secret").read_text()
        with fails_with(errno.EACCES):
            os.pread(held.fileno(), 10, 0)
    mount.allow("vault/secret", "rw")
    assert (moved / "secret").read_text() == "secret\n"


def test_what_the_host_puts_into_a_renamed_directory_is_hidden_as_at_its_own_place(guarded: Guarded) -> None:
    mount = guarded({"vault/open": "o\n"}, "vault/secret=hide")
    os.rename(mount.root / "vault", mount.root / "moved")
    (mount.lower / "vault/secret").write_text("secret\n")
    mount.host_changed()
    with fails_with(errno.ENOENT):
        (mount.root / "moved/secret").read_text()
    assert os.listdir(mount.root / "moved") == ["open"]


def test_a_directory_that_was_renamed_and_renamed_back_is_as_it_was(guarded: Guarded) -> None:
    mount = guarded({"vault/open": "o\n", "other/x": "x\n"}, "other/open=ro")
    os.rename(mount.root / "vault", mount.root / "moved")
    os.rename(mount.root / "moved", mount.root / "vault")
    (mount.root / "vault/open").write_text("changed\n")
    assert (mount.root / "vault/open").read_text() == "changed\n"


def test_an_imported_redirect_shows_nothing_that_is_hidden(tmp_path: Path) -> None:
    workspace = build(tmp_path / "workspace", TREE)
    archive = tmp_path / "archive"
    changes = [directory(""), directory("pub", redirect="vault"), directory("deep", redirect="vault/deep")]
    archive.write_bytes(Parts(honest().manifest, changes, [], b"").packed())
    view = tmp_path / "view"
    rules = rule_options("vault/secret=hide", "vault/deep=hide")

    def done(*words: str | Path) -> None:
        result = run_sandboxfs(*words, state=tmp_path / "state")
        assert result.returncode == 0, result.stderr

    with package_found():
        done("import", "--name", "imported", archive, workspace)
        done("mount", "--mkdir", "--replace-policy", "--name", "imported", *rules, workspace, view)
        try:
            assert sorted(os.listdir(view / "pub")) == ["open"]
            assert "deep" not in os.listdir(view)
            for path in (view / "pub/secret", view / "deep/secret", view / "pub/deep/secret"):
                with fails_with(errno.ENOENT):
                    path.read_text()
        finally:
            detach_mount(view)
