"""A PATH names what the view has there, whatever the workspace has."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Symlink, Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {
    "real/f": "1\n",
    "real/g": "2\n",
    "dl": Symlink("real"),
    "a": Symlink("a"),
    "still": Symlink("real"),
}


@pytest.fixture
def mounted(mount: Mount) -> MountDriver:
    """A sandbox in which links of the workspace became directories."""
    mounted = mount(TREE)
    view = mounted.root
    for name in ("dl", "a"):
        (view / name).unlink()
        (view / name).mkdir()
        (view / name / "f").write_text("junk\n")
    with (view / "real/f").open("a") as file:
        file.write("precious\n")
    return mounted


def said(mounted: MountDriver, *words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs(words[0], "-s", "test", *words[1:], state=mounted.state, cwd=cwd)


def names(mounted: MountDriver) -> set[str]:
    return set(said(mounted, "diff", "--name-status").stdout.splitlines())


def test_a_path_in_the_view_is_discarded_and_not_what_a_link_in_the_workspace_leads_to(
    mounted: MountDriver,
) -> None:
    assert said(mounted, "discard", "--yes", str(mounted.root / "dl/f")).returncode == 0
    assert (mounted.root / "real/f").read_text() == "1\nprecious\n"
    assert not (mounted.root / "dl/f").exists()


def test_a_path_in_the_workspace_is_committed_and_not_what_a_link_there_leads_to(
    mounted: MountDriver,
) -> None:
    assert said(mounted, "commit", "--yes", "dl/f", cwd=mounted.lower).returncode == 0
    assert (mounted.lower / "real/f").read_text() == "1\n"
    assert not (mounted.lower / "dl").is_symlink()
    assert (mounted.lower / "dl/f").read_text() == "junk\n"
    assert "M\treal/f" in names(mounted)
    mounted.host_changed()


def test_a_diff_finds_what_it_lists(mounted: MountDriver) -> None:
    for path in ("dl/f", "a/f", "a"):
        for top in (mounted.root, mounted.lower):
            shown = said(mounted, "diff", "--name-status", str(top / path))
            assert (shown.returncode, shown.stderr) == (0, "")
            assert path in shown.stdout
            assert "real" not in shown.stdout


def test_a_way_to_the_workspace_or_the_view_is_followed(mounted: MountDriver, tmp_path: Path) -> None:
    for name, top in (("to-view", mounted.root), ("to-workspace", mounted.lower)):
        (tmp_path / name).symlink_to(top)
        shown = said(mounted, "diff", "--name-status", str(tmp_path / name / "dl/f"))
        # Where the workspace has a link, the directory around the file is taken with it.
        assert shown.stdout == "A\tdl/f\n# sandboxfs: commit applies 1 change not in this list: 'dl'\n"


def test_a_rule_is_about_what_the_view_has(mounted: MountDriver) -> None:
    assert said(mounted, "allow", str(mounted.root / "dl/f"), "deny").returncode == 0
    with pytest.raises(PermissionError):
        (mounted.root / "dl/f").read_text()
    assert (mounted.root / "real/f").read_text() == "1\nprecious\n"
    # What is a link in the view as well leads where it leads.
    assert said(mounted, "allow", "still/g", "deny").returncode == 0
    with pytest.raises(PermissionError):
        (mounted.root / "still/g").read_text()
    told = said(mounted, "why", "--json", "still/g", cwd=mounted.lower)
    assert (told.returncode, json.loads(told.stdout)["path"]) == (1, "real/g")
    told = said(mounted, "why", "--json", "dl/g", cwd=mounted.root)
    assert (told.returncode, json.loads(told.stdout)["path"]) == (0, "dl/g")


def test_a_rule_of_the_next_mount_is_about_what_the_view_will_have(mounted: MountDriver) -> None:
    assert said(mounted, "unmount").returncode == 0
    words = [
        "--replace-policy",
        "--allow",
        "dl/f:deny",
        "--allow",
        "still/g:deny",
        str(mounted.lower),
        str(mounted.root),
    ]
    again = run_sandboxfs("mount", "--name", "test", *words, state=mounted.state)
    assert again.returncode == 0, again.stderr
    for path in ("dl/f", "real/g"):
        with pytest.raises(PermissionError):
            (mounted.root / path).read_text()
    assert (mounted.root / "real/f").read_text() == "1\nprecious\n"
