"""Access lists (POSIX ACLs) and modes in the view are those of a plain directory, and shown at once."""

import os
import stat
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import conditions
from tests.support.access_lists import ACCESS, DEFAULT, access_list
from tests.support.syscalls import statx_mode
from tests.support.tree import File

SOMEBODY = 65534
LISTS = {
    "none": None,
    "minimal": access_list(7, 7, 0),
    "narrow": access_list(5, 4, 0),
    "named": access_list(7, 5, 5, users={101: 7}, mask=7),
    "masked": access_list(7, 7, 7, users={101: 7}, mask=4),
}
UMASKS = (0o022, 0o077, 0o722, 0)
MODES = (0o777, 0o666, 0o640, 0o1770)
# Makes one of each kind for each umask and mode, after removing what was there.
MAKE = """
import os, stat, sys
for umask in map(int, sys.argv[1].split(",")):
    os.umask(umask)
    for mode in map(int, sys.argv[2].split(",")):
        name = f"%s-{umask:o}-{mode:o}"
        os.mkdir(name % "dir", mode)
        os.close(os.open(name % "file", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
        os.mknod(name % "fifo", stat.S_IFIFO | mode)
        os.mknod(name % "node", stat.S_IFREG | mode)
"""


def options() -> list[str]:
    return ["--allow-other"] if os.getuid() == 0 else []


def run_python(
    program: str, *arguments: str, cwd: Path, user: int | None = None, group: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a Python program, as root on behalf of another user without further groups."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        user=user,
        group=user if group is None else group,
        extra_groups=None if user is None else [],
    )


def permissions(path: Path) -> tuple[int, dict[str, bytes]]:
    lists = {name: os.getxattr(path, name) for name in (ACCESS, DEFAULT) if name in os.listxattr(path)}
    return stat.S_IMODE(os.lstat(path).st_mode), lists


@pytest.mark.parametrize("whose", ["own", "other"])
def test_the_mode_follows_an_access_list_at_once(mount: Mount, tmp_path: Path, whose: str) -> None:
    if whose == "other":
        # Then the kernel does not judge by lists, unless others may use the mount.
        conditions.require_root()
        (tmp_path / "workspace").mkdir()
        os.chown(tmp_path / "workspace", SOMEBODY, SOMEBODY)
    view = mount({"file": "text", "dir/": ""})
    assert view.root.stat().st_uid == (SOMEBODY if whose == "other" else os.getuid())
    for name in ("file", "dir"):
        path = view.root / name
        path.chmod(0o755)
        assert stat.S_IMODE(statx_mode(os.fsencode(path))) == 0o755
        os.setxattr(path, ACCESS, access_list(6, 0, 0))
        assert stat.S_IMODE(statx_mode(os.fsencode(path))) == 0o600
        os.setxattr(path, ACCESS, access_list(7, 1, 1, users={101: 7}, mask=5))
        assert stat.S_IMODE(statx_mode(os.fsencode(path))) == 0o751
        os.removexattr(path, ACCESS)
        assert ACCESS not in os.listxattr(path)
        path.chmod(0o700)
        assert stat.S_IMODE(statx_mode(os.fsencode(path))) == 0o700


def test_a_revoked_reader_cannot_read_any_more(mount: Mount) -> None:
    conditions.require_root()
    view = mount({"file": "text"}, "--allow-other")
    read = "print(open('file').read())"
    for revoked in (access_list(6, 4, 0), access_list(6, 4, 4, users={SOMEBODY: 0}, mask=4)):
        os.setxattr(view.root / "file", ACCESS, access_list(6, 4, 4))
        assert run_python(read, cwd=view.root, user=SOMEBODY).stdout == "text\n"
        os.setxattr(view.root / "file", ACCESS, revoked)
        assert "PermissionError" in run_python(read, cwd=view.root, user=SOMEBODY).stderr


def test_a_user_named_in_an_access_list_of_the_workspace_may_read(mount: Mount) -> None:
    conditions.require_root()
    view = mount({"dir/file": "text"}, "--allow-other")
    (view.lower / "dir").chmod(0o700)
    (view.lower / "dir/file").chmod(0o600)
    os.setxattr(view.lower / "dir", ACCESS, access_list(7, 0, 0, users={SOMEBODY: 5}, mask=5))
    os.setxattr(view.lower / "dir/file", ACCESS, access_list(6, 0, 0, users={SOMEBODY: 4}, mask=4))
    view.host_changed()
    reading = run_python("print(open('dir/file').read())", cwd=view.root, user=SOMEBODY)
    assert reading.stdout == "text\n"
    writing = run_python("open('dir/file', 'a')", cwd=view.root, user=SOMEBODY)
    assert "PermissionError" in writing.stderr


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("place", ["new", "lower"])
def test_what_is_made_has_the_permissions_of_a_plain_directory(
    mount: Mount, tmp_path: Path, kind: str, place: str
) -> None:
    """Whatever the default list, the umask, the mode and the way in which the upper gets it."""
    view = mount({"lower/": ""}, *options())
    plain = tmp_path / "plain"
    plain.mkdir()
    inside = view.root / place
    inside.mkdir(exist_ok=True)
    for top in (plain, inside if place == "new" else view.lower / place):
        top.chmod(0o2777)
        if LISTS[kind] is not None:
            os.setxattr(top, DEFAULT, LISTS[kind] or b"")
    view.host_changed()
    numbers = ",".join(map(str, UMASKS)), ",".join(map(str, MODES))
    for user in [None, SOMEBODY] if os.getuid() == 0 else [None]:
        for top in (plain, inside):
            run_python(MAKE, *numbers, cwd=top, user=user).check_returncode()
        names = sorted(os.listdir(plain))
        assert len(names) == 4 * len(UMASKS) * len(MODES)
        assert {name: permissions(inside / name) for name in names} == {
            name: permissions(plain / name) for name in names
        }
        for top, name in product((plain, inside), names):
            (os.rmdir if name.startswith("dir") else os.unlink)(top / name)


def test_set_group_id_goes_with_an_access_list_set_by_somebody_outside_the_group(mount: Mount) -> None:
    conditions.require_root()
    view = mount({"file": "text", "dir/": ""}, "--allow-other")
    program = "import os, sys; os.setxattr(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]))"
    for name in ("file", "dir"):
        path = view.root / name
        os.chown(path, SOMEBODY, SOMEBODY)
        for group, kept in ((SOMEBODY, stat.S_ISGID), (SOMEBODY - 1, 0)):
            path.chmod(0o2755)
            value = access_list(7, 7, 7)
            words = name, ACCESS, value.hex()
            setting = run_python(program, *words, cwd=view.root, user=SOMEBODY, group=group)
            setting.check_returncode()
            assert stat.S_IMODE(statx_mode(os.fsencode(path))) == 0o777 | kept


def test_nothing_in_the_view_inherits_the_access_lists_of_the_state_directory(
    mount: Mount, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.setxattr(state, DEFAULT, access_list(7, 7, 7, users={101: 7}, mask=7))
    view = mount({"file": File("text", mode=0o640), "dir/file": "text"})
    (view.root / "file").write_text("changed")
    (view.root / "dir/new").touch()
    (view.root / "dir/file").unlink()
    (view.root / "dir/file").touch()
    (view.root / "new").touch()
    (view.root / "folder").mkdir()
    (view.root / "folder/new").touch()
    found = [view.root, *view.root.rglob("*")]
    assert len(found) == 8
    assert [path for path in found if permissions(path)[1]] == []
    assert permissions(view.root / "file")[0] == 0o640


def test_the_way_through_a_denied_directory_is_open_to_others_as_its_mode_says(mount: Mount) -> None:
    conditions.require_root()
    rules = ["--rule", "private/open=rw", "--rule", "private=deny"]
    view = mount({"private/open/file": "text", "private/shut": "text"}, "--allow-other", *rules)
    read = "import sys; print(open(sys.argv[1]).read())"
    for user in (None, SOMEBODY):
        assert run_python(read, "private/open/file", cwd=view.root, user=user).stdout == "text\n"
        assert "PermissionError" in run_python(read, "private/shut", cwd=view.root, user=user).stderr
