"""What the golden states are examples of: workspaces, and what programs did in views of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.support.drivers import Verbs
from tests.support.tree import LONG_AGO, Directory, File, HardLink, Symlink, Tree

ODD: Final = b"odd \xff name"
TEXT: Final = "one\ntwo\n" + "".join(f"{number}\n" for number in range(3, 13)) + "thirteen\n"
EDITED: Final = TEXT.replace("two", "TWO").replace("thirteen", "THIRTEEN").encode()

EVERYTHING: Final[Tree] = {
    "kept": "kept\n",
    "edited": TEXT,
    "gone": "gone\n",
    "moved": "moved\n",
    "program": "#!/bin/sh\n",
    "tagged": File("tagged\n", xattrs={"user.colour": b"red"}),
    "linked": "linked\n",
    "linked too": HardLink("linked"),
    "three/a": "three names\n",
    "three/b": HardLink("three/a"),
    "three/c": HardLink("three/a"),
    "link": Symlink("edited"),
    "passed": Symlink("kept"),
    "to file/a": "a",
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
    "locked/": Directory(0o755),
    ODD: "odd",
}


def do_everything(view: Verbs) -> None:
    """Change a view of `EVERYTHING` in every way there is."""
    view.write("edited", EDITED)
    view.write(ODD, b"odder \xfe")
    view.unlink("gone")
    view.rename("moved", "renamed")
    view.chmod("program", 0o755)
    view.setxattr("tagged", "user.colour", b"blue")
    view.write("linked", b"both\n")
    view.unlink("three/b")
    view.chmod("three/c", 0o600)
    view.unlink("link")
    view.symlink("kept", "link")
    view.rename("link", "link2")
    view.rename("passed", "passed on")
    view.unlink("to file/a")
    view.rmdir("to file")
    view.write("to file", b"now a file")
    view.unlink("to directory")
    view.mkdir("to directory")
    view.write("to directory/n", b"n")
    view.rename("dir", "dir2")
    view.write("dir2/x", b"X\n")
    view.unlink("dir2/z")
    view.rename("dir2/sub", "sub")
    view.mkdir("dir")
    view.write("dir/fresh", b"f")
    view.remove_tree("dead")
    view.remove_tree("anew")
    view.mkdir("anew")
    view.write("anew/q", b"Q")
    view.remove_tree("replaced")
    view.rename("replacing", "replaced")
    view.mkdir("tree")
    view.mkdir("tree/in", 0o700)
    view.write("tree/in/leaf", b"leaf")
    view.symlink("leaf", "tree/in/link")
    view.mkfifo("tree/fifo", 0o600)
    view.link("tree/in/leaf", "tree/hard")
    view.chmod("locked", 0o700)
    _date(view)


FEW: Final[Tree] = {
    "edited": TEXT,
    "gone": "gone\n",
    "dir/x": "x\n",
    "dir/y": "y\n",
}


def do_little(view: Verbs) -> None:
    """Change a view of `FEW`: two hunks, a deletion, a renamed directory with a change in it, a new file."""
    view.write("edited", EDITED)
    view.unlink("gone")
    view.rename("dir", "dir2")
    view.write("dir2/x", b"X\n")
    view.mkdir("new")
    view.write("new/file", b"new\n")
    _date(view)


def _date(view: Verbs, path: bytes = b"") -> None:
    """Give everything that has just been written one time, so that no two examples differ by it."""
    for name in sorted(view.names(path or b".")):
        inner = os.path.join(path, name)
        status = view.lstat(inner)
        if view.is_dir(inner):
            _date(view, inner)
        elif status.st_mtime_ns > LONG_AGO and not os.path.islink(inner):
            view.utime(inner, LONG_AGO + 10**9, LONG_AGO + 10**9)


@dataclass(frozen=True)
class Example:
    """A state, how it came about, and scripts for it.

    *then* are commands that were given when the view had ended; *killed*, where the last of them was killed:
    after how many changes of the host beyond which line of the journal. *scripts* start from the state, each
    by itself.
    """

    tree: Tree
    change: Callable[[Verbs], None]
    scripts: dict[str, list[list[str]]]
    then: tuple[tuple[str, ...], ...] = ()
    killed: tuple[str, int] | None = None
    # What is written into the workspace meanwhile, before the commands.
    meanwhile: dict[str, str] | None = None


_BOX: Final = ["-s", "golden"]
_COMMIT: Final = ["commit", *_BOX, "--yes", "--json"]
_DIFF: Final = ["diff", *_BOX, "--json"]
_UNDO: Final = ["undo", *_BOX, "--yes", "--json"]
_RECORDS: Final = ["undo", *_BOX, "--list", "--json"]
_STATUS: Final = ["status", *_BOX, "--json"]
# Ends what was begun, and then finds nothing to do.
_RECOVER: Final = ["commit", *_BOX, "--yes", "--hunk", "none"]
_RECOVERY: Final = {"the next command ends it": [_RECOVER, _DIFF, _RECORDS]}
_FINISHED: Final = {"the next command ends it": [_STATUS, _RECOVER, _STATUS, _DIFF, _RECORDS, _UNDO, _DIFF]}
_COMMITTED: Final = ("commit", *_BOX, "--yes", "-m", "a message \u00e4")
_DISCARDED: Final = ("discard", *_BOX, "--all", "--yes")
_UNDONE: Final = ("undo", *_BOX, "--yes")


def _hunk(which: int) -> str:
    return f"@hunk:{which}@"


EXAMPLES: Final[dict[str, Example]] = {
    "changed": Example(
        EVERYTHING,
        do_everything,
        {
            "look": [
                _DIFF,
                ["diff", *_BOX, "--no-pager"],
                ["diff", *_BOX, "--name-status", "--no-pager"],
                _STATUS,
                ["list", "--json"],
                ["commit", *_BOX, "--dry-run", "--json"],
                ["rm", "golden", "--json"],
            ],
            "commit": [_COMMIT, _DIFF, _UNDO],
            "commit a part": [["commit", *_BOX, "--yes", "--json", "@root@/workspace/dir2"], _DIFF],
            "discard": [["discard", *_BOX, "--all", "--yes", "--json"], _DIFF, _UNDO, _DIFF],
            "export": [
                ["export", "@root@/archive.tar", *_BOX, "--json"],
                ["import", "@root@/archive.tar", "@root@/workspace", "--name", "again", "--json"],
                ["diff", "-s", "again", "--json"],
            ],
        },
    ),
    "committed": Example(
        EVERYTHING,
        do_everything,
        {
            "undo": [_RECORDS, _UNDO, _DIFF, _RECORDS],
            "gc": [["gc", *_BOX, "--older-than", "0s", "--json"], _RECORDS],
        },
        then=(_COMMITTED,),
    ),
    "committed in part": Example(
        FEW,
        do_little,
        {"undo": [_RECORDS, _DIFF, _UNDO, _DIFF], "commit the rest": [_COMMIT, _RECORDS, _UNDO, _DIFF]},
        then=(("commit", *_BOX, "--yes", "--hunk", _hunk(0)),),
    ),
    "merged with markers": Example(
        FEW,
        do_little,
        {"undo": [_RECORDS, _DIFF, _UNDO, _DIFF]},
        then=(("commit", *_BOX, "--yes", "--on-conflict", "merge"),),
        meanwhile={"edited": TEXT.replace("two", "2")},
    ),
    "discarded": Example(
        EVERYTHING,
        do_everything,
        {"undo": [_RECORDS, _DIFF, _UNDO, _DIFF, _RECORDS]},
        then=(_DISCARDED,),
    ),
    "discarded in part": Example(
        FEW,
        do_little,
        {"undo": [_RECORDS, _DIFF, _UNDO, _DIFF]},
        then=(("discard", *_BOX, "--yes", "@root@/workspace/dir2", "@root@/workspace/gone"),),
    ),
    "undone": Example(
        FEW,
        do_little,
        {"look": [_RECORDS, _DIFF], "commit again": [_COMMIT, _RECORDS, _UNDO, _DIFF]},
        then=(_COMMITTED, _UNDONE),
    ),
    "undone in part": Example(
        FEW,
        do_little,
        {"look": [_RECORDS, _DIFF]},
        then=(_COMMITTED, ("@write", "edited", "by hand\n"), _UNDONE),
    ),
    "commit killed at its intent": Example(
        FEW, do_little, _RECOVERY, then=(_COMMITTED,), killed=("intent", 4)
    ),
    "commit killed when staged": Example(FEW, do_little, _RECOVERY, then=(_COMMITTED,), killed=("staged", 0)),
    "commit killed while exchanging": Example(
        EVERYTHING, do_everything, _RECOVERY, then=(_COMMITTED,), killed=("staged", 7)
    ),
    "commit killed when applied": Example(
        FEW, do_little, _FINISHED, then=(_COMMITTED,), killed=("applied", 0)
    ),
    "commit killed while settling": Example(
        FEW, do_little, _RECOVERY, then=(_COMMITTED,), killed=("applied", 12)
    ),
    "commit without room for what was": Example(
        FEW, do_little, _RECOVERY, then=(_COMMITTED,), killed=("applied false", 0)
    ),
    "discard killed": Example(FEW, do_little, _RECOVERY, then=(_DISCARDED,), killed=("staged", 6)),
    "undo killed while exchanging": Example(
        FEW, do_little, _RECOVERY, then=(_COMMITTED, _UNDONE), killed=("staged", 4)
    ),
    "undo killed when applied": Example(
        FEW, do_little, _RECOVERY, then=(_COMMITTED, _UNDONE), killed=("applied", 0)
    ),
}
