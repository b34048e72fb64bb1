"""Can a hard link give a ruled file a second door, or a symlink lead around the view?"""

import errno
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support.claims import fails_with, upper_names
from tests.support.guarded import MakeArea
from tests.support.mounted import PATIENCE, run
from tests.support.tree import HardLink, Symlink, Tree

# Links to the directory that they are in, as Debian has one.
SHORTCUTS = ["/usr/bin/X11"]
REFUSALS = {"hidden": errno.ENOENT, "denied": errno.EACCES, "fixed": errno.EROFS}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_ruled_file_gets_no_second_name(area: MakeArea, name: str) -> None:
    made = area({name: "ruled\n", f"{name}-dir/x": "ruled\n", "free/": ""})
    for source in (name, f"{name}-dir/x"):
        with fails_with(REFUSALS[name]):
            os.link(made.view / source, made.view / "free" / "door")
    assert upper_names(made.upper) == []


@pytest.mark.parametrize("name", REFUSALS)
def test_a_ruled_name_gets_no_file(area: MakeArea, name: str) -> None:
    made = area({"free": "f\n"})
    with fails_with(errno.EROFS if name == "fixed" else errno.EACCES):
        os.link(made.view / "free", made.view / f"{name}-new")
    assert upper_names(made.upper) == []


def test_a_free_name_of_a_file_that_also_has_a_ruled_one_is_ruled_once_both_are_known(area: MakeArea) -> None:
    made = area({"fixed-1": "ruled\n", "free": HardLink("fixed-1")})
    assert (made.view / "fixed-1").read_text() == "ruled\n"
    with fails_with(errno.EROFS):
        (made.view / "free").write_text("changed\n")
    assert upper_names(made.upper) == []


def test_a_symlink_made_in_the_view_does_not_lead_to_what_is_ruled(area: MakeArea) -> None:
    made = area({"hidden": "h\n", "denied": "d\n", "fixed": "f\n", "hidden-dir/x": "x\n"})
    for number, (target, error) in enumerate(
        (("hidden", errno.ENOENT), ("hidden-dir/x", errno.ENOENT), ("denied", errno.EACCES))
    ):
        link = made.view / f"link-{number}"
        link.symlink_to(target)
        with fails_with(error):
            link.read_text()
        absolute = made.view / f"absolute-{number}"
        absolute.symlink_to(made.view / target)
        with fails_with(error):
            absolute.read_text()
        host = made.view / f"host-{number}"
        host.symlink_to(made.lower / target)
        with fails_with(error):
            host.read_text()
    (made.view / "link").symlink_to("fixed")
    with fails_with(errno.EROFS):
        (made.view / "link").write_text("changed\n")
    with fails_with(errno.EROFS):
        os.chmod(made.view / "link", 0o777)


def test_a_symlink_to_the_workspace_leads_to_the_view_and_not_around_it(area: MakeArea) -> None:
    made = area({"file": "lower\n", "sub/x": "x\n"})
    for place in ("up", "sub/down"):
        link = made.view / place
        link.symlink_to(made.lower / "file")
        link.write_text("changed\n")
        assert not os.readlink(link).startswith("/")
    assert (made.view / "file").read_text() == "changed\n"
    assert (made.lower / "file").read_text() == "lower\n"


def test_a_symlink_of_the_workspace_to_its_own_path_leads_to_the_view(
    guarded: Guarded, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    mount = guarded(
        {"file": "lower\n", "self": Symlink(str(workspace)), "abs": Symlink(str(workspace / "file"))}
    )
    (mount.root / "abs").write_text("changed\n")
    (mount.root / "self" / "new").write_text("new\n")
    assert (mount.root / "new").read_text() == "new\n"
    assert (mount.lower / "file").read_text() == "lower\n"


def test_a_symlink_out_of_the_view_cannot_be_followed(guarded: Guarded, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    mount = guarded(
        {
            "data": Symlink(str(outside)),
            "file": Symlink(str(outside / "precious")),
            "relative": Symlink("../outside/precious"),
            "sub/far": Symlink("../../outside"),
            "sub/round": Symlink("../sub/../../outside"),
        }
    )
    (mount.root / "made").symlink_to(outside)
    for link in ("data", "file", "relative", "sub/far", "sub/round", "made"):
        with fails_with(errno.EACCES):
            os.readlink(mount.root / link)
        with fails_with(errno.EACCES):
            os.stat(mount.root / link)
    with fails_with(errno.EACCES):
        (mount.root / "data" / "precious").write_text("gone\n")
    with fails_with(errno.EACCES):
        os.open(mount.root / "file", os.O_WRONLY | os.O_TRUNC)
    run("sh", "-c", "rm -rf data/* made/* sub/far/*", cwd=mount.root, status=None)
    assert (outside / "precious").read_text() == "precious\n"
    assert sorted(os.listdir(mount.root)) == ["data", "file", "made", "relative", "sub"]


def test_a_chain_of_symlinks_does_not_lead_out_of_the_view(guarded: Guarded, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    mount = guarded({"a/b/c/": "", "a/up": Symlink(".."), "deep": Symlink("a/b/c")})
    os.symlink("deep/../../../../outside", mount.root / "through")
    os.symlink("a/up/../outside", mount.root / "counted")
    os.symlink("a/b/../../../outside", mount.root / "plain")
    for link in ("through", "counted", "plain"):
        with pytest.raises(OSError):
            os.stat(mount.root / link / "precious")


def test_a_symlink_that_is_moved_up_does_not_lead_out_of_the_view(guarded: Guarded, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    mount = guarded({"a/b/": ""})
    os.symlink("../../outside/precious", mount.root / "a" / "b" / "link")
    assert os.readlink(mount.root / "a" / "b" / "link") == "../../outside/precious"
    os.rename(mount.root / "a" / "b" / "link", mount.root / "link")
    with pytest.raises(OSError):
        (mount.root / "link").read_text()
    os.rename(mount.root / "link", mount.root / "a" / "link")
    with pytest.raises(OSError):
        (mount.root / "a" / "link").read_text()


def test_a_symlink_into_the_system_can_be_followed_when_guarded_and_not_when_links_are_denied(
    guarded: Guarded,
) -> None:
    mount = guarded({"python": Symlink("/usr/bin/env"), "inside": Symlink("file"), "file": "f\n"})
    assert os.path.samefile(mount.root / "python", "/usr/bin/env")
    assert (mount.root / "inside").read_text() == "f\n"


def test_denied_symlinks_still_work_inside_the_view(guarded: Guarded) -> None:
    tree: Tree = {"out": Symlink("/usr/bin/env"), "inside": Symlink("file"), "file": "f\n"}
    mount = guarded(tree, options=("--symlinks", "deny"))
    with fails_with(errno.EACCES):
        os.stat(mount.root / "out")
    assert (mount.root / "inside").read_text() == "f\n"


def test_dots_in_an_absolute_target_do_not_pass_for_a_system_directory(
    guarded: Guarded, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    dodges = [
        f"/usr/..{outside}",
        f"/usr/../{outside}/precious",
        f"//usr/../..{outside}",
        f"/etc/./..{outside}",
    ]
    mount = guarded({f"link-{number}": Symlink(target) for number, target in enumerate(dodges)})
    for number in range(len(dodges)):
        with pytest.raises(OSError):
            os.stat(mount.root / f"link-{number}")


@pytest.mark.parametrize("through", ["the view", "the system"])
def test_dots_after_a_symlink_in_an_absolute_target_do_not_lead_out_of_the_view(
    guarded: Guarded, tmp_path: Path, through: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    mount = guarded({"a/b/c/d/system": Symlink("/etc")})
    # Where a link shortens the way, as many dots lead further up than the text says.
    if through == "the view":
        target = f"{mount.root}/a/b/c/d/system/../../../..{outside}"
    else:
        shortcut = next((link for link in SHORTCUTS if Path(link).is_symlink()), None)
        if shortcut is None:
            pytest.skip("no link in the system's directories leads to the directory it is in")
        target = f"{shortcut}/../..{outside}"
    os.symlink(target, mount.root / "link")
    with pytest.raises(OSError):
        (mount.root / "link" / "precious").read_text()


# Swaps a name between a plain file and a symlink to what is ruled, as fast as it can.
SWAP = """
import os, sys, time
folder, target, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.chdir(folder)
end = time.monotonic() + seconds
while time.monotonic() < end:
    os.symlink(target, "swap.tmp")
    os.rename("swap.tmp", "swap")
    with open("swap.tmp", "w") as file:
        file.write("harmless")
    os.rename("swap.tmp", "swap")
"""


def test_a_symlink_swapped_between_check_and_use_leads_to_nothing_that_is_ruled(
    area: MakeArea,
) -> None:
    made = area({"denied": "secret", "fixed": "fixed", "race/": ""})
    seconds = 3.0
    for target in ("../denied", "../fixed"):
        swapping = subprocess.Popen(
            [sys.executable, "-c", SWAP, made.view / "race", target, str(seconds / 2)]
        )
        try:
            end = time.monotonic() + seconds / 2
            while time.monotonic() < end:
                try:
                    with open(made.view / "race" / "swap", "r+") as file:
                        assert file.read() != "secret"
                        file.write("written")
                except OSError:
                    pass
        finally:
            assert swapping.wait(PATIENCE) == 0
    assert (made.view / "fixed").read_text() == "fixed"
    assert "denied" not in upper_names(made.upper)
    assert "fixed" not in upper_names(made.upper)


# Swaps a directory with a ruled one's name against a free one, as fast as it can.
SHUFFLE = """
import os, sys, time
os.chdir(sys.argv[1])
end = time.monotonic() + float(sys.argv[2])
moved = 0
while time.monotonic() < end:
    for source, target in (("plain", "vault"), ("vault", "plain")):
        try:
            os.rename(source, target)
            moved += 1
        except OSError:
            pass
print(moved)
"""


def test_a_directory_renamed_between_check_and_use_does_not_plant_a_ruled_name(area: MakeArea) -> None:
    made = area({"box/plain/x": "x\n"})
    command: list[str | Path] = [sys.executable, "-c", SHUFFLE, made.view / "box", "2"]
    written = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shuffling:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            # By either name the file may be made in the directory, as long as that has its plain one then.
            for name in ("vault", "plain"):
                try:
                    (made.view / "box" / name / "key").write_text("planted")
                    written += 1
                except OSError:
                    continue
            for name in ("vault", "plain"):
                with suppress(OSError):
                    os.unlink(made.view / "box" / name / "key")
        moved = int(shuffling.communicate(timeout=PATIENCE)[0])
    assert written
    assert moved
    # Every move with a `key` inside was refused, so only an empty-handed directory has the ruled name.
    assert "vault/key" not in run("find", "box", cwd=made.view)
    assert not (made.upper / "box" / "vault" / "key").exists()
