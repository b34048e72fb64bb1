"""Can any sequence of operations tell the view from a plain directory?

The machine applies random verbs to a sandbox and to an ordinary copy of its workspace. After each step both
must have answered alike, error by error, and look alike; a file keeps its inode number for as long as it
lives. Few names are used, so that they collide, and the workspace begins with hard links, symlinks and nested
directories.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.core_driver import CoreDriver
from tests.support.drivers import HostTree, OpenFile, Sandbox, Verbs
from tests.support.observe import Observed, differences, observe
from tests.support.part_of_mount import MountPool
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.support.tree import LONG_AGO, Fifo, File, HardLink, Symlink, Tree, build

SEED: Tree = {
    "a/a": "a of a\n",
    "a/b/c": "c of b\n",
    # No symlink leads upwards: moved to the root, it would leave the plain directory and not the view.
    "a/b/a": Symlink("c"),
    "a/b/d/e": "deep\n",
    "b": Symlink("a"),
    "c": File("c\n", xattrs={"user.one": b"1"}),
    "a/c": HardLink("c"),
    "a/b/e": HardLink("c"),
    "d/": "",
    "e/a": "ea\n",
    "e/b/a": "eba\n",
    "e/b/b": HardLink("e/a"),
    "e/c": Fifo(),
    "e/d": Symlink("nowhere"),
}


class Place(NamedTuple):
    """How to choose a path: among those that exist, in a directory that exists, or blindly."""

    how: str
    number: int
    path: str


names = st.sampled_from("abcdefg")
blind_paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def places(*how: str) -> st.SearchStrategy[Place]:
    return st.builds(Place, st.sampled_from(how), st.integers(0, 99), blind_paths)


existing = places("file", "existing", "existing", "directory", "blind")
files = places("file", "file", "file", "existing", "blind")
directories = places("directory", "directory", "directory", "existing", "blind")
fresh = places("new", "new", "new", "existing", "blind")
anywhere = places("existing", "directory", "new", "blind")
data = st.sampled_from([b"", b"x", b"some text\n", b"0123456789" * 50, b"z" * 5000])
sizes = st.sampled_from([0, 1, 7, 100, 4096, 10_000])
# An ordinary user could not look into a directory, or take it away again, that lacks its owner's bits.
_OWNER = 0 if os.geteuid() == 0 else 0o700
modes = st.sampled_from([_OWNER | mode for mode in (0o644, 0o600, 0o755, 0o700, 0o4755, 0o2775)])
open_flags = st.sampled_from(
    [
        os.O_RDONLY,
        os.O_RDWR,
        os.O_WRONLY,
        os.O_RDWR | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        os.O_RDWR | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
    ]
)
attributes = st.sampled_from(["user.one", "user.two"])


class Answer:
    """What a call came to: a value, or an error."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.code = 0
        self.value: object = None
        try:
            self.value = call()
        except OSError as error:
            self.code = error.errno or errno.EIO

    def __str__(self) -> str:
        return errno.errorcode[self.code] if self.code else f"success ({self.value!r})"


class ViewAndPlainDirectory(RuleBasedStateMachine):
    make_sandbox: Callable[[Path], Sandbox]
    parent: Path

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="machine-", dir=self.parent))
        self.umask = os.umask(0)
        self.open: list[tuple[OpenFile, OpenFile]] = []
        self.plain = HostTree(build(self.place / "plain", SEED))
        self.view = type(self).make_sandbox(self.place)
        self.last: tuple[Observed, Observed] | None = None

    def path(self, place: Place) -> str:
        """The path that a place stands for now."""
        if place.how == "blind" or self.last is None:
            return place.path
        seen = self.last[1].names
        if place.how == "new":
            folders = sorted(path for path, what in seen.items() if what.mode[0] == "d")
            return os.path.join(os.fsdecode(folders[place.number % len(folders)]), place.path[0])
        first = {"file": "-", "directory": "d", "existing": "-dlp"}[place.how]
        found = sorted(path for path, what in seen.items() if what.mode[0] in first and path != b".")
        return os.fsdecode(found[place.number % len(found)]) if found else place.path

    def both(self, call: Callable[[Verbs], object]) -> None:
        """Ask both sides; they must answer alike."""
        view, plain = Answer(lambda: call(self.view)), Answer(lambda: call(self.plain))
        assert view.code == plain.code, f"the view answers {view}, a plain directory {plain}"
        assert view.value == plain.value, f"the view answers {view}, a plain directory {plain}"

    def is_fifo(self, path: str) -> bool:
        try:
            return stat.S_ISFIFO(self.plain.stat(path).st_mode)
        except OSError:
            return False

    # Files

    @rule(place=fresh, content=data)
    def create(self, place: Place, content: bytes) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.create(path, content))

    @rule(place=files, content=data, mode=modes)
    def replace(self, place: Place, content: bytes, mode: int) -> None:
        path = self.path(place)
        if not self.is_fifo(path):
            self.both(lambda tree: tree.write(path, content, os.O_CREAT | os.O_TRUNC, mode))

    @rule(place=files, content=data)
    def overwrite(self, place: Place, content: bytes) -> None:
        path = self.path(place)
        if not self.is_fifo(path):
            self.both(lambda tree: tree.write(path, content, 0))

    @rule(place=files, content=data)
    def append(self, place: Place, content: bytes) -> None:
        path = self.path(place)
        if not self.is_fifo(path):
            self.both(lambda tree: tree.append(path, content))

    @rule(place=files, size=sizes)
    def truncate(self, place: Place, size: int) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.truncate(path, size))

    @rule(place=files)
    def read(self, place: Place) -> None:
        path = self.path(place)
        if not self.is_fifo(path):
            self.both(lambda tree: tree.read(path))

    # Names

    @rule(place=fresh, mode=modes)
    def mkdir(self, place: Place, mode: int) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.mkdir(path, mode))

    @rule(place=directories)
    def rmdir(self, place: Place) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.rmdir(path))

    @rule(place=files)
    def unlink(self, place: Place) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.unlink(path))

    @rule(place=directories)
    def remove_tree(self, place: Place) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.remove_tree(path))

    @rule(
        place=existing,
        new_place=anywhere,
        flags=st.sampled_from([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]),
    )
    def rename(self, place: Place, new_place: Place, flags: int) -> None:
        path, new_path = self.path(place), self.path(new_place)
        self.both(lambda tree: tree.rename(path, new_path, flags))

    @rule(place=files, new_place=fresh)
    def link(self, place: Place, new_place: Place) -> None:
        path, new_path = self.path(place), self.path(new_place)
        self.both(lambda tree: tree.link(path, new_path))

    @rule(place=fresh, leads_to=blind_paths)
    def symlink(self, place: Place, leads_to: str) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.symlink(leads_to, path))

    @rule(place=fresh)
    def mkfifo(self, place: Place) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.mkfifo(path))

    @rule(place=directories)
    def names(self, place: Place) -> None:
        path = self.path(place)
        self.both(lambda tree: sorted(tree.names(path)))

    # Attributes

    @rule(place=existing, mode=modes)
    def chmod(self, place: Place, mode: int) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.chmod(path, mode))

    @rule(place=existing, second=st.integers(1, 10**9))
    def utime(self, place: Place, second: int) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.utime(path, LONG_AGO, second * 10**9 + 987_654_321))

    @rule(
        place=existing,
        name=attributes,
        value=data,
        flags=st.sampled_from([0, os.XATTR_CREATE, os.XATTR_REPLACE]),
    )
    def setxattr(self, place: Place, name: str, value: bytes, flags: int) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.setxattr(path, name, value[:1000], flags))

    @rule(place=existing, name=attributes)
    def removexattr(self, place: Place, name: str) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.removexattr(path, name))

    @rule(place=existing, name=attributes)
    def getxattr(self, place: Place, name: str) -> None:
        path = self.path(place)
        self.both(lambda tree: tree.getxattr(path, name))

    # Open files

    @precondition(lambda self: len(self.open) < 3)
    @rule(place=files, flags=open_flags)
    def open_file(self, place: Place, flags: int) -> None:
        path = self.path(place)
        if self.is_fifo(path) or (
            flags & os.O_DIRECTORY and self.plain.exists(path) and self.plain.is_dir(path)
        ):
            return
        opened: list[OpenFile] = []

        def call(tree: Verbs) -> None:
            opened.append(tree.open(path, flags))

        # A directory that can be read can be opened; the machine has no use for it.
        if flags & os.O_ACCMODE == os.O_RDONLY and Answer(lambda: self.plain.names(path)).code == 0:
            return
        try:
            self.both(call)
        finally:
            if len(opened) == 2:
                self.open.append((opened[0], opened[1]))

    def both_open(self, number: int, call: Callable[[OpenFile], object]) -> None:
        view_file, plain_file = self.open[number % len(self.open)]
        view, plain = Answer(lambda: call(view_file)), Answer(lambda: call(plain_file))
        assert view.code == plain.code, f"the open view file answers {view}, a plain one {plain}"
        assert view.value == plain.value, f"the open view file answers {view}, a plain one {plain}"

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 2), content=data, offset=sizes)
    def write_open(self, number: int, content: bytes, offset: int) -> None:
        self.both_open(number, lambda file: file.pwrite(content, offset))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 2), offset=sizes)
    def read_open(self, number: int, offset: int) -> None:
        self.both_open(number, lambda file: file.pread(20_000, offset))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 2), size=sizes)
    def truncate_open(self, number: int, size: int) -> None:
        self.both_open(number, lambda file: file.truncate(size))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 2))
    def stat_open(self, number: int) -> None:
        def seen(file: OpenFile) -> tuple[int, int, int]:
            status = file.stat()
            return status.st_mode, status.st_size, status.st_nlink

        self.both_open(number, seen)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 2))
    def close(self, number: int) -> None:
        for file in self.open.pop(number % len(self.open)):
            file.close()

    # Sessions

    @precondition(lambda self: not self.open)
    @rule()
    def remount(self) -> None:
        self.view.remount()

    @precondition(lambda self: not self.open and self.view.kind == "core")
    @rule()
    def forget(self) -> None:
        self.view.forget()

    @initialize()
    def begin(self) -> None:
        self.look_alike()

    @invariant()
    def look_alike(self) -> None:
        view, plain = observe(self.view), observe(self.plain)
        found = differences(view, plain)
        assert not found, "the view differs from a plain directory:\n" + "\n".join(found)
        if self.last is not None:
            self.inodes_last(*self.last, view, plain)
        self.last = view, plain

    @staticmethod
    def inodes_last(old_view: Observed, old_plain: Observed, view: Observed, plain: Observed) -> None:
        """What the plain directory shows to be the same file has the same number in the view as before."""
        old = {ino: old_view.inodes[path] for path, ino in old_plain.inodes.items()}
        for path, ino in plain.inodes.items():
            if ino in old:
                assert view.inodes[path] == old[ino], f"{path!r} has another inode number than before"

    def teardown(self) -> None:
        try:
            for pair in self.open:
                for file in pair:
                    file.close()
            self.view.finish()
        finally:
            self.view.abandon()
            os.umask(self.umask)
            shutil.rmtree(self.place)


def check(make: Callable[[Path], Sandbox], place: Path, *, share: float, steps: int) -> None:
    """Run the machine with a share of the examples that the profile asks for."""

    class Machine(ViewAndPlainDirectory):
        make_sandbox = staticmethod(make)
        parent = place

    examples = max(1, round(settings().max_examples * share))
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=steps))


def forgetful_core(place: Path) -> Sandbox:
    return CoreDriver(place / "state", build(place / "workspace", SEED))


def remembering_core(place: Path) -> Sandbox:
    return CoreDriver(place / "state", build(place / "workspace", SEED), remembers=True)


@pytest.mark.parametrize("make", [forgetful_core, remembering_core])
def test_no_sequence_of_operations_tells_the_core_from_a_plain_directory(
    make: Callable[[Path], Sandbox], tmp_path: Path
) -> None:
    check(make, tmp_path, share=1, steps=40)


@pytest.mark.mount
def test_no_sequence_of_operations_tells_a_mount_from_a_plain_directory(
    tmp_path: Path, mount_pool: MountPool
) -> None:
    check(lambda place: mount_pool.part(SEED), tmp_path, share=0.25, steps=40)
