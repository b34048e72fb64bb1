"""Symlink targets in the view: shown byte for byte, resolved as in a plain directory, or refused."""

import ctypes
import errno
import os
import random
from pathlib import Path

from tests.security.conftest import Guarded
from tests.support.claims import fails_with
from tests.support.mount_driver import MountDriver
from tests.support.tree import Symlink, Tree

DENIALS = {errno.EXDEV: errno.EACCES}
HARMLESS = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdin", "/dev/stdout", "/dev/stderr"),
    *("/dev/fd", "/dev/fd/1", "/proc/self", "/proc/self/fd", "/proc/self/fd/2"),
)
HARMFUL = ("/dev/sda", "/dev/nullify", "/dev/fd/1/x", "/proc/self/root", "/proc/self/cwd/x", "/proc/1")
_SYS_OPENAT2, _RESOLVE_BENEATH = 437, 0x08
_libc = ctypes.CDLL(None, use_errno=True)


def beneath(top: Path, path: str) -> int:
    """The errno of resolving *path* in a plain directory; EXDEV where the way leads out of *top*."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH)
    directory = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        fd: int = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
    finally:
        os.close(directory)
    if fd < 0:
        return ctypes.get_errno()
    os.close(fd)
    return 0


def in_view(path: Path) -> int:
    """The errno of resolving *path* through the mount."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 0
    return 0


def assert_sizes_match(mount: MountDriver, *names: str) -> None:
    with os.scandir(mount.root) as entries:
        listed = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
    for name in names:
        target = os.fsencode(os.readlink(mount.root / name))
        assert os.lstat(mount.root / name).st_size == len(target)
        if "/" not in name:
            assert listed[name] == len(target)


def test_dots_after_a_link_lead_to_the_parent_of_its_target(guarded: Guarded) -> None:
    tree: Tree = {"a/f": "A\n", "b/": "", "f": "ROOT\n", "a/tob": Symlink("../b"), "L": Symlink("a/tob/../f")}
    mount = guarded(tree)
    os.symlink("a/tob/../f", mount.root / "made")
    for name in ("L", "made"):
        assert (mount.root / name).read_text() == "ROOT\n"
        assert os.readlink(mount.root / name) == "a/tob/../f"
    assert_sizes_match(mount, "L", "made")


def test_a_link_through_a_missing_directory_leads_nowhere_and_keeps_its_text(guarded: Guarded) -> None:
    mount = guarded({"a/f": "A\n", "L": Symlink("nonexist/../a/f"), "M": Symlink("a/f/../f")})
    assert os.readlink(mount.root / "L") == "nonexist/../a/f"
    assert os.readlink(mount.root / "M") == "a/f/../f"
    with fails_with(errno.ENOENT):
        os.stat(mount.root / "L")
    with fails_with(errno.ENOTDIR):
        os.stat(mount.root / "M")


def test_a_link_is_judged_anew_when_a_directory_on_its_way_is_replaced(
    guarded: Guarded, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious\n")
    mount = guarded({"a/b/": "", "precious": "in the view\n", "L": Symlink("way/../../precious")})
    os.symlink("a/b", mount.root / "way")
    assert (mount.root / "L").read_text() == "in the view\n"
    os.unlink(mount.root / "way")
    os.mkdir(mount.root / "way")
    with fails_with(errno.EACCES):
        (mount.root / "L").read_text()
    os.rmdir(mount.root / "way")
    os.symlink("a/b", mount.root / "way")
    assert (mount.root / "L").read_text() == "in the view\n"


def test_a_link_that_leaves_the_view_and_comes_back_by_name_is_refused(guarded: Guarded) -> None:
    mount = guarded({"f": "f\n"})
    os.symlink(f"../{mount.root.name}/f", mount.root / "back")
    os.symlink(f"../{mount.lower.name}/f", mount.root / "around")
    for name in ("back", "around"):
        with fails_with(errno.EACCES):
            os.readlink(mount.root / name)


def test_a_link_through_the_window_does_not_lead_out(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious\n")
    mount = guarded({"x": "x\n"})
    os.symlink(".sandboxfs/../../precious", mount.root / "L")
    os.symlink(".sandboxfs/policy", mount.root / "policy")
    with fails_with(errno.EACCES):
        (mount.root / "L").read_text()
    assert (mount.root / "policy").read_text()


def test_a_link_that_leaves_through_a_system_directory_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious\n")
    mount = guarded({"system": Symlink("/usr/share")})
    os.symlink(f"system/../..{tmp_path}/precious", mount.root / "L")
    os.symlink("system/doc", mount.root / "doc")
    with fails_with(errno.EACCES):
        (mount.root / "L").read_text()
    assert os.readlink(mount.root / "doc") == "system/doc"


def test_every_name_of_a_link_is_judged(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious\n")
    mount = guarded({"a/b/": "", "file": "f\n"})
    os.symlink("../../precious", mount.root / "a/b/L")
    os.symlink(mount.lower / "file", mount.root / "a/b/M")
    os.link(mount.root / "a/b/L", mount.root / "L", follow_symlinks=False)
    os.link(mount.root / "a/b/M", mount.root / "M", follow_symlinks=False)
    for name in ("L", "a/b/L", "M", "a/b/M"):
        with fails_with(errno.EACCES):
            (mount.root / name).read_text()


def test_a_hidden_name_on_the_way_of_a_link_is_as_one_that_is_not_there(guarded: Guarded) -> None:
    mount = guarded({"secret/x": "x\n"}, "secret=hide", "absent=hide")
    for name in ("secret", "absent"):
        os.symlink(f"{name}/../../outside", mount.root / f"to-{name}")
        assert os.readlink(mount.root / f"to-{name}") == f"{name}/../../outside"
        with fails_with(errno.ENOENT):
            os.stat(mount.root / f"to-{name}")


def test_a_link_into_the_workspace_is_shown_as_a_relative_one_of_its_size(
    guarded: Guarded, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    mount = guarded(
        {
            "a/f": "A\n",
            "f": "ROOT\n",
            "b/": "",
            "a/tob": Symlink("../b"),
            "L": Symlink(f"{workspace}/a/tob/../f"),
            "top": Symlink(f"{workspace}"),
            "slash": Symlink(f"{workspace}//a/"),
            "a/deep": Symlink(f"{workspace}/f"),
            "out": Symlink(f"{workspace}/../precious"),
        }
    )
    (tmp_path / "precious").write_text("precious\n")
    assert os.readlink(mount.root / "L") == "a/tob/../f"
    assert (mount.root / "L").read_text() == "ROOT\n"
    assert os.readlink(mount.root / "top") == "."
    assert os.readlink(mount.root / "slash") == "a/"
    assert os.readlink(mount.root / "a/deep") == "../f"
    assert_sizes_match(mount, "L", "top", "slash", "a/deep")
    with fails_with(errno.EACCES):
        os.readlink(mount.root / "out")
    # Deeper down the way up is longer.
    os.makedirs(mount.root / "x/y")
    os.rename(mount.root / "a", mount.root / "x/y/a")
    assert os.readlink(mount.root / "x/y/a/deep") == "../../../f"
    assert_sizes_match(mount, "x/y/a/deep")


def test_a_link_to_a_harmless_device_is_kept_and_to_another_is_refused(guarded: Guarded) -> None:
    targets = [*HARMLESS, *HARMFUL]
    mount = guarded({f"L{number}": Symlink(target) for number, target in enumerate(targets)})
    for number, target in enumerate(targets):
        if target in HARMLESS:
            assert os.readlink(mount.root / f"L{number}") == target
            assert_sizes_match(mount, f"L{number}")
        else:
            with fails_with(errno.EACCES):
                os.readlink(mount.root / f"L{number}")


def random_target(chance: random.Random, directory: str, paths: list[str]) -> str:
    """A relative target whose words mostly lead somewhere, going by the words alone."""
    here, words = directory, []
    for _ in range(chance.randint(1, 6)):
        top = f"{here}/".lstrip("/")
        names = sorted({path.removeprefix(top).split("/")[0] for path in paths if path.startswith(top)})
        word = chance.choice(["..", ".", "nothing", *["..", *names] * 3])
        here = os.path.normpath(f"{here}/{word}").strip("./")
        words.append(word)
    return "/".join(words)


def test_any_relative_link_is_followed_as_in_a_plain_directory_or_refused(guarded: Guarded) -> None:
    chance = random.Random(13)
    directories = ["", "a", "a/b", "c", "c/d/e", "c/d"]
    files = [f"{directory}/f".lstrip("/") for directory in directories]
    links: dict[str, Symlink] = {}
    for number in range(120):
        directory = chance.choice(directories)
        target = random_target(chance, directory, [*files, *links])
        links[f"{directory}/l{number}".lstrip("/")] = Symlink(target)
    mount = guarded({**dict.fromkeys(files, ""), **dict(links.items())})
    expected = {link: beneath(mount.lower, link) for link in links}
    # All kinds of outcomes are among them.
    assert {0, errno.ENOENT, errno.ENOTDIR, errno.EXDEV} <= set(expected.values())
    found = {link: in_view(mount.root / link) for link in links}
    assert found == {link: DENIALS.get(number, number) for link, number in expected.items()}
    for link, number in expected.items():
        if number == 0:
            assert os.readlink(mount.root / link) == os.readlink(mount.lower / link)
            where = (mount.lower / link).resolve().relative_to(mount.lower)
            assert (mount.root / link).resolve().relative_to(mount.root) == where
