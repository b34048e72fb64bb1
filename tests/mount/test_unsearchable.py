"""Directories without permission to search or to read them are listed and removed as on a plain disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.tree import Symlink, Tree

SOMEBODY = 65534
TREE: Tree = {"file": "", "dir/": "", "link": Symlink("file")}
# Names with what the listing says of them, and what looking at them says.
LIST = """
import errno, os, sys
for entry in sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name):
    kinds = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False), entry.is_symlink()
    try:
        os.lstat(entry.path)
        error = "none"
    except OSError as found:
        error = errno.errorcode[found.errno]
    print(entry.name, *kinds, error)
"""


def as_somebody(program: str, *arguments: str, cwd: Path) -> list[str]:
    """The lines that a Python program prints, run as an ordinary user."""
    root = os.getuid() == 0
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        user=SOMEBODY if root else None,
        group=SOMEBODY if root else None,
        extra_groups=[] if root else None,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def give_away(*paths: Path) -> None:
    if os.getuid() == 0:
        for path in paths:
            os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


@pytest.mark.parametrize("where", ["lower", "merged", "upper"])
def test_a_directory_that_may_be_read_and_not_searched_is_listed_without_attributes(
    mount: Mount, where: str
) -> None:
    tree: Tree = {f"lower/{name!s}": node for name, node in TREE.items()}
    view = mount({**tree, "lower/gone": ""}, *(["--allow-other"] if os.getuid() == 0 else []))
    expected = ["dir True False False EACCES", "file False True False EACCES", "link False False True EACCES"]
    if where == "lower":
        here = view.lower / "lower"
        expected.insert(2, "gone False True False EACCES")
    else:
        here = view.root / where
        if where == "merged":
            os.rename(view.root / "lower", here)
            (here / "gone").unlink()
        else:
            here.mkdir()
            (here / "file").touch()
            (here / "dir").mkdir()
            (here / "link").symlink_to("file")
        (here / "new").touch()
        expected.append("new False True False EACCES")
    give_away(here)
    here.chmod(0o444)
    try:
        assert as_somebody(LIST, here.name, cwd=view.root) == expected
    finally:
        here.chmod(0o755)
        view.host_changed()


def test_an_empty_directory_without_any_permission_is_removed(mount: Mount) -> None:
    view = mount({"lower/gone": ""}, *(["--allow-other"] if os.getuid() == 0 else []))
    give_away(view.root)
    os.unlink(view.root / "lower/gone")
    os.mkdir(view.root / "new")
    for name in ("lower", "new"):
        give_away(view.root / name)
        (view.root / name).chmod(0)
        as_somebody("import os, sys; os.rmdir(sys.argv[1])", name, cwd=view.root)
    assert os.listdir(view.root) == []
