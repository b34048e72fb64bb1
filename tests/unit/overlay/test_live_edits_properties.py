"""Whatever a program did, and whatever is taken back: the view is right, and so is what the kernel cached.

A program changes the view at random. Then everything leaves the upper, operation by operation, because it is
discarded or because the workspace has got it. After each, the cache of names and attributes that a kernel
would have, less what it was told to ask for again, must hold, and open files must show what their names show.
"""

import os
import random
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from sandboxfs.overlay.filesystem import ROOT_INODE, Entry
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.upper.edits import WHITEOUT, Operation, Prune, RemoveEntry, Unhide, UpperIdentity
from tests.support.claims import is_whiteout
from tests.support.core_files import CoreFile, shown
from tests.support.drivers import HostTree, OpenFile
from tests.support.edited import LiveBench
from tests.support.observe import differences, observe
from tests.support.tree import HardLink, Symlink, Tree

TREE: Tree = {
    "a": "lower a",
    "b": "lower b",
    "d/a": "lower d/a",
    "d/b": HardLink("b"),
    "d/e/a": "lower d/e/a",
    "d/e/b": Symlink("../a"),
    "e/a": "lower e/a",
    "e/d/b": "lower e/d/b",
}
NAMES = ["a", "b", "d", "e"]
STEPS = 25


def some_path(chance: random.Random) -> str:
    return "/".join(chance.choice(NAMES) for _ in range(chance.choice([1, 1, 2, 2, 3])))


def work_at_random(bench: LiveBench, chance: random.Random, *, moves_directories: bool = True) -> None:
    """Do some things that a program may do; what cannot be done fails as it does anywhere."""

    def rename(path: str, other: str) -> None:
        if moves_directories or not bench.is_dir(path):
            bench.rename(path, other)

    for _ in range(STEPS):
        path, other = some_path(chance), some_path(chance)
        actions = [
            partial(bench.write, path, b"upper %d" % chance.randrange(100)),
            partial(bench.write, path, b"upper %d" % chance.randrange(100)),
            partial(bench.unlink, path),
            partial(bench.remove_tree, path),
            partial(bench.mkdir, path),
            partial(rename, path, other),
            partial(rename, path, other),
            partial(bench.link, path, other),
            partial(bench.symlink, "a", path),
            partial(bench.chmod, path, 0o700),
        ]
        try:
            chance.choice(actions)()
        except OSError:
            continue


def discard_all(bench: LiveBench) -> list[Operation]:
    """The operations that take everything out of the upper, in an order that does."""
    operations: list[Operation] = []

    def leave(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            name = bytes(path.relative_to(bench.upper))
            keep = b"%d" % len(operations)
            if is_whiteout(path):
                operations.append(RemoveEntry(name, WHITEOUT, keep))
            elif path.is_dir() and not path.is_symlink():
                operations.append(Unhide(name))
                leave(path)
                operations.append(Prune(name, keep))
            else:
                operations.append(RemoveEntry(name, UpperIdentity.of(path.lstat()), keep))

    leave(bench.upper)
    return [*nameless_copies(bench), *operations]


def nameless_copies(bench: LiveBench) -> list[Operation]:
    """The copies of hard-linked files of which the upper has no name; only the index has them."""
    named = {path.lstat().st_ino for path in bench.upper.rglob("*")}
    found: list[Operation] = []
    for path in sorted(bench.index.glob("h*")):
        status = path.lstat()
        if status.st_ino not in named:
            # Any name at which the upper has nothing.
            found.append(
                RemoveEntry(b"nothing", UpperIdentity.of(status), path.name.encode(), int(path.name[1:], 16))
            )
    return found


def extended(bench: LiveBench, operation: Operation, serial: int) -> list[Operation]:
    """An operation, and before a directory is pruned the removal of the whiteouts that it was opened with."""
    if not isinstance(operation, Prune):
        return [operation]
    folder = bench.upper / os.fsdecode(operation.path)
    left = [path for path in sorted(folder.iterdir()) if is_whiteout(path)]
    drops = [RemoveEntry(bytes(path.relative_to(bench.upper)), WHITEOUT, b"x%d" % serial) for path in left]
    return [*drops, operation]


class Cache(NamedTuple):
    """What a kernel remembers: names and absences by directory, and what it was told of inodes."""

    names: dict[tuple[int, bytes], int | None]
    told: dict[int, tuple[object, ...]]


def told(bench: LiveBench, entry: Entry) -> tuple[object, ...]:
    status = shown(entry)
    content, size = None, 0
    if stat.S_ISREG(status.st_mode):
        size = status.st_size
        with bench.open_inode(entry.ino, os.O_RDONLY) as file:
            content = file.pread(1000, 0)
    # Link counts of what comes from the workspace are asked for again by themselves.
    return status.st_mode, size, status.st_mtime_ns, content


def cached(bench: LiveBench) -> Cache:
    """Look at everything there is, and at names that might be there."""
    names: dict[tuple[int, bytes], int | None] = {}
    found = {ROOT_INODE: told(bench, bench.fs.getattr(ROOT_INODE))}
    pending = [ROOT_INODE]
    while pending:
        directory = pending.pop()
        for name in map(str.encode, NAMES):
            entry = bench._lookup(directory, name)
            names[directory, name] = None if entry is None else entry.ino
            if entry is not None:
                found[entry.ino] = told(bench, entry)
                if stat.S_ISDIR(entry.stat.st_mode):
                    pending.append(entry.ino)
    return Cache(names, found)


def check_cache(bench: LiveBench, before: Cache, outdated: Invalidation) -> None:
    """What the kernel was not told to ask for again is what it would be told."""
    now = cached(bench)
    for place, ino in before.names.items():
        if place in now.names and place not in outdated.expired | outdated.removed:
            assert now.names[place] == ino, place
    for ino, known in before.told.items():
        if ino in now.told and ino not in outdated.inodes:
            assert now.told[ino] == known, ino


def open_some(bench: LiveBench, chance: random.Random) -> list[tuple[bytes, OpenFile]]:
    """Open files of the view, as programs have them open while a review goes on."""
    files = [path for path, seen in observe(bench).names.items() if seen.content is not None]
    chosen = [path for path in files if chance.random() < 0.5]
    return [(path, bench.open(path, chance.choice([os.O_RDONLY, os.O_RDWR]))) for path in chosen]


def check_open(bench: LiveBench, files: list[tuple[bytes, OpenFile]]) -> None:
    for path, file in files:
        content = file.pread(1000, 0)
        if bench.exists(path) and bench.lstat(path).st_ino == file.stat().st_ino:
            assert content == bench.read(path), path


def edit_all(bench: LiveBench, files: list[tuple[bytes, OpenFile]]) -> None:
    """Take everything out of the upper, and look at everything after each operation."""
    done: list[Operation] = []
    for planned in discard_all(bench):
        for operation in extended(bench, planned, len(done)):
            before = cached(bench)
            (outcome,) = bench.edit(operation)
            done.append(operation)
            assert outcome.done, (done, outcome)
            check_cache(bench, before, bench.outdated)
            check_open(bench, files)
            assert bench.observed_anew()
    assert list(bench.upper.iterdir()) == []
    assert [name for name in os.listdir(bench.index) if name.startswith("h")] == []


def has_one_name(bench: LiveBench, ino: int) -> bool:
    node = bench.fs._inodes.node(ino)
    return bench.fs.is_dir(ino) or (not node.indexed and bench.fs.getattr(ino).stat.st_nlink == 1)


class Commit:
    """Gives the workspace what the view has, and leaves alone what is the same."""

    def __init__(self, bench: LiveBench) -> None:
        self._lower, self._upper = bench.lower, bench.upper
        self._view = {
            os.fsdecode(path): (bench.lstat(path), seen)
            for path, seen in observe(bench).names.items()
            if path != b"."
        }
        self._links: dict[int, Path] = {}
        for path in sorted(self._lower.rglob("*"), reverse=True):
            if not self._is_same(path):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in sorted(self._view):
            self._bring(name)
        for name in sorted(self._view, reverse=True):
            status = self._view[name][0]
            os.utime(self._lower / name, ns=(status.st_mtime_ns,) * 2, follow_symlinks=False)

    def _is_same(self, path: Path) -> bool:
        name = str(path.relative_to(self._lower))
        status, seen = self._view.get(name, (None, None))
        if status is None or seen is None or stat.S_IFMT(status.st_mode) != stat.S_IFMT(path.lstat().st_mode):
            return False
        if seen.target is not None:
            return os.fsencode(os.readlink(path)) == seen.target
        if seen.content is None:
            return True
        ours = status.st_ino == path.stat().st_ino or not os.path.lexists(self._upper / name)
        if not ours or path.read_bytes() != seen.content:
            return False
        self._links[status.st_ino] = path
        return True

    def _bring(self, name: str) -> None:
        path, (status, seen) = self._lower / name, self._view[name]
        if not os.path.lexists(path):
            if seen.target is not None:
                path.symlink_to(os.fsdecode(seen.target))
            elif seen.content is None:
                path.mkdir()
            elif status.st_ino in self._links:
                os.link(self._links[status.st_ino], path)
            else:
                path.write_bytes(seen.content)
                self._links[status.st_ino] = path
        if seen.target is None:
            path.chmod(stat.S_IMODE(status.st_mode))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LiveBench]:
    made = LiveBench(tmp_path, TREE)
    try:
        yield made
        for file in list(made._open):
            file.close()
        made.stop()
    finally:
        made.abandon()


@pytest.mark.parametrize("seed", range(30))
def test_what_is_discarded_step_by_step_shows_as_the_workspace_in_the_end(
    bench: LiveBench, seed: int
) -> None:
    chance = random.Random(seed)
    work_at_random(bench, chance)
    files = open_some(bench, chance)
    edit_all(bench, files)
    found = differences(observe(bench), observe(HostTree(bench.lower)))
    # The root stays in the upper, with the times that making and removing names gave it.
    assert [line for line in found if not line.startswith(".: mtime")] == []


@pytest.mark.parametrize("seed", range(30))
def test_what_the_workspace_got_leaves_the_upper_and_no_program_notices(bench: LiveBench, seed: int) -> None:
    chance = random.Random(seed)
    work_at_random(bench, chance, moves_directories=False)
    files = open_some(bench, chance)
    before, known = observe(bench), cached(bench)
    # Names of a hard link that the upper does not have are a new file's as soon as the workspace has got it.
    single = {at for at, ino in known.names.items() if ino is None or has_one_name(bench, ino)}
    Commit(bench)
    edit_all(bench, files)
    assert [line for line in differences(observe(bench), before) if "nlink" not in line] == []
    now = cached(bench).names
    assert {at: now.get(at) for at in single} == {at: known.names[at] for at in single}
    for number, (path, file) in enumerate(files):
        if isinstance(file, CoreFile) and file.writes:
            file.pwrite(b"%d" % number, 0)
            assert bench.read(path) == file.pread(1000, 0), path
