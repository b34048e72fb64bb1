"""How does a test edit an upper that nobody serves, and see what the view makes of it?

The upper is made by working in a view. Then the view ends, operations are done on the layers, and another
view shows what came of them.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandboxfs.hostfs import syscalls
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.upper.baseline import Baseline, BaselineEntry
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.edits import EditOutcome, Expected, Operation, RemoveEntry, UpperIdentity
from sandboxfs.upper.marks import Index, Staging, Whiteouts
from sandboxfs.upper.unmounted import UnmountedUpper, numbering
from sandboxfs.upper.writer import UpperWriter
from tests.support.core_driver import CoreDriver
from tests.support.observe import Observed, differences, observe
from tests.support.tree import Tree, build

RECORD = 1


class Bench:
    """A sandbox with one record, at *place*; *devices* says which whiteouts are written."""

    def __init__(self, place: Path, tree: Tree, *, devices: bool = True) -> None:
        self.devices = devices
        self.lower = build(place / "workspace", tree)
        self.commits = place / "commits"
        self.kept = self.commits / str(RECORD) / "upper"
        self.kept.mkdir(parents=True)
        self.view = CoreDriver(place / "state", self.lower)
        self.upper, self.index = self.view.upper, self.view.index
        if not devices:
            self.view.fs._stack.whiteouts.devices = False

    def identity(self, path: str) -> UpperIdentity:
        """What the upper has at *path*, to be expected there."""
        return UpperIdentity.of((self.upper / path).lstat())

    def drop(self, path: str, keep: str = "", *, expect: Expected | None = None) -> RemoveEntry:
        name = (keep or path.replace("/", "-")).encode()
        return RemoveEntry(path.encode(), self.identity(path) if expect is None else expect, name)

    def edit(self, *operations: Operation, record: int = RECORD) -> list[EditOutcome]:
        """Do the operations on the layers, between two lives of the view."""
        self.view.stop()
        try:
            with self.upper_editor() as editor:
                editor.use(record)
                return [editor.edit(operation) for operation in operations]
        finally:
            self.start()

    def start(self) -> None:
        self.view.start()
        if not self.devices:
            self.view.fs._stack.whiteouts.devices = False

    @contextmanager
    def upper_editor(self) -> Iterator[UpperWriter]:
        with ExitStack() as opened:
            upper, workspace, work, index, baseline, commits = (
                opened.enter_context(HostDir.at(path))
                for path in (
                    self.upper,
                    self.lower,
                    self.view.work,
                    self.index,
                    self.view.baseline,
                    self.commits,
                )
            )
            staging = Staging(work)
            staging.clear()
            writer = BaselineWriter(baseline)
            opened.callback(writer.close)
            whiteouts = Whiteouts(devices=self.devices)
            tree = UnmountedUpper(
                upper, workspace, staging, Index(index, staging), whiteouts, writer, numbering(workspace)
            )
            editor = UpperWriter(tree, commits)
            opened.callback(editor.close)
            yield editor

    def observed(self) -> Observed:
        return observe(self.view)

    def entry(self, path: str) -> BaselineEntry | None:
        with HostDir.at(self.view.baseline) as directory:
            return Baseline.load(directory).get(path.encode())

    def close(self) -> None:
        self.view.abandon()


class Killed(BaseException):
    """The process is dead; nothing it does afterwards reaches the disk."""


_CALLS = (
    *("mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "chmod", "chown", "utime"),
    *("setxattr", "removexattr", "write", "pwrite", "ftruncate"),
)


@contextmanager
def killed_before(number: int) -> Iterator[list[str]]:
    """Die before the host is changed for the *number*-th time, counted from 0; gives the calls made.

    Whatever cleans up on the way out finds that the host does nothing any more, as after `kill -9`.
    """
    made: list[str] = []

    def wrapped(name: str, call: object) -> object:
        def counted(*args: object, **kwargs: object) -> object:
            if len(made) >= number:
                raise Killed
            made.append(name)
            return call(*args, **kwargs)  # type: ignore[operator]

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        patch.setattr(syscalls, "rename", wrapped("renameat2", syscalls.rename))
        yield made


@contextmanager
def ordinary_user(place: Path) -> Iterator[Path]:
    """Be nobody in particular for the time, whoever runs the tests; gives a directory that is one's own."""
    home = place / "own"
    home.mkdir()
    if os.geteuid() != 0:
        yield home
        return
    os.chown(home, 65534, 65534)
    with pytest.MonkeyPatch.context() as patch:
        # Above it, only root may go.
        patch.chdir(home)
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
        try:
            yield Path()
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)


class LiveBench(CoreDriver):
    """A view that is edited while it is served, and of which everything looked at is remembered."""

    def __init__(self, place: Path, tree: Tree) -> None:
        self.commits = place / "commits"
        self.kept = self.commits / str(RECORD) / "upper"
        self.kept.mkdir(parents=True)
        self.outdated = Invalidation()
        self.sealed: list[Path] = []
        super().__init__(place / "state", build(place / "workspace", tree), remembers=True)

    def start(self) -> None:
        super().start()
        if self.sealed:
            self.fs.seal_foreign(self.sealed)

    def identity(self, path: str) -> UpperIdentity:
        return UpperIdentity.of((self.upper / path).lstat())

    def drop(self, path: str, keep: str = "") -> RemoveEntry:
        return RemoveEntry(path.encode(), self.identity(path), (keep or path.replace("/", "-")).encode())

    def edit(self, *operations: Operation) -> list[EditOutcome]:
        """Do the operations, and what the kernel does when it is told what became of them."""
        self.outdated = Invalidation()
        with HostDir.at(self.commits) as commits:
            editor = self.fs.upper_editor(commits)
            try:
                return editor.edit(RECORD, operations, self.outdated)
            finally:
                editor.close()

    def anew(self) -> Observed:
        """What a view shows that knows nothing yet."""
        onlooker = _Onlooker(self)
        try:
            return observe(onlooker)
        finally:
            onlooker.fs.close()

    def observed_anew(self) -> bool:
        """Whether one who knows nothing sees what this view shows."""
        # One who remembers nothing cannot tell two objects by number that have the same one written down.
        found = [line for line in differences(observe(self), self.anew()) if "shares_with" not in line]
        assert not found, "\n".join(found)
        return True


class _Onlooker(CoreDriver):
    """A second view of the same layers, which only looks."""

    def __init__(self, bench: LiveBench) -> None:
        self.caller, self.remembers = bench.caller, False
        self.references, self._open = Counter(), set()
        self.fs = Overlay(OverlayPaths([bench.lower], bench.upper, bench.work, bench.index))
