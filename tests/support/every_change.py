"""A sandbox that has done everything there is to do to a workspace, once."""

from pathlib import Path

from tests.support.committed import Committed
from tests.support.drivers import Sandbox
from tests.support.tree import File, HardLink, Symlink, Tree

WORKSPACE: Tree = {
    "kept": "kept\n",
    "edited": "old\n",
    "gone": "gone\n",
    "moved": "moved\n",
    "program": "#!/bin/sh\n",
    "tagged": File("tagged\n", xattrs={"user.colour": b"red"}),
    "linked": "linked\n",
    "linked too": HardLink("linked"),
    "link": Symlink("edited"),
    "to file/a": "a",
    "to file/b/c": "c",
    "to directory": "file",
    "dir/x": "x\n",
    "dir/sub/y": "y\n",
    "dir/z": "z\n",
    "dead/1": "1",
    "dead/deep/2": "2",
    "anew/p": "p",
    "anew/q": "q",
    "replaced/r": "r",
    "replacing/s": "s",
    "locked/in": "in",
    b"odd \xff\n": "odd",
}


def do_everything(sandbox: Sandbox) -> None:
    """Change a view of `WORKSPACE` in every way."""
    sandbox.write("edited", b"new text\n")
    sandbox.write(b"odd \xff\n", b"odder")
    sandbox.unlink("gone")
    sandbox.rename("moved", "renamed")
    sandbox.chmod("program", 0o755)
    sandbox.setxattr("tagged", "user.colour", b"blue")
    sandbox.write("linked", b"both\n")
    sandbox.unlink("link")
    sandbox.symlink("kept", "link")
    for path in ("to file/a", "to file/b/c", "dead/1", "dead/deep/2", "anew/p", "anew/q", "replaced/r"):
        sandbox.unlink(path)
    for path in ("to file/b", "to file", "dead/deep", "dead", "anew", "replaced"):
        sandbox.rmdir(path)
    sandbox.write("to file", b"now a file")
    sandbox.unlink("to directory")
    sandbox.mkdir("to directory")
    sandbox.write("to directory/n", b"n")
    sandbox.rename("dir", "dir2")
    sandbox.write("dir2/x", b"X\n")
    sandbox.unlink("dir2/z")
    sandbox.rename("dir2/sub", "sub")
    sandbox.mkdir("dir")
    sandbox.write("dir/fresh", b"f")
    sandbox.rename("replacing", "replaced")
    sandbox.mkdir("anew")
    sandbox.write("anew/q", b"Q")
    sandbox.write("anew/r", b"r")
    sandbox.mkdir("tree")
    sandbox.mkdir("tree/in", 0o700)
    sandbox.write("tree/in/leaf", b"leaf")
    sandbox.symlink("leaf", "tree/in/link")
    sandbox.mknod("tree/fifo", 0o010600)
    sandbox.link("tree/in/leaf", "tree/hard")
    sandbox.chmod("locked", 0o500)


def changed(place: Path) -> Committed:
    """A sandbox with all of it."""
    sandbox = Committed(place, WORKSPACE)
    do_everything(sandbox)
    return sandbox
