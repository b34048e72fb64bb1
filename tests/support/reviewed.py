"""A sandbox whose changes are looked at: the core in process, and what a scan finds in its layers.

The sandbox's verbs make the changes; `host` is the workspace, edited as a person on the host would. Findings
are written in short: the kind, the path, where it came from, and `!` behind what is a conflict.
"""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sandboxfs.review.change import PathChange, Version
from sandboxfs.review.patch import load, patch
from sandboxfs.review.scan import scan, survey
from sandboxfs.review.summary import file_changes
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store
from sandboxfs.upper.sandbox_layers import LayerPaths, Layers, open_layers
from tests.support.core_driver import CoreDriver
from tests.support.drivers import HostTree, Verbs
from tests.support.tree import Tree, build


class Reviewed(CoreDriver):
    """The core in process, with a workspace that may be edited."""

    def __init__(self, place: Path, tree: Tree) -> None:
        super().__init__(place / "state", build(place / "workspace", tree))
        self.host = self.lower
        self.host_changed()

    @property
    def paths(self) -> LayerPaths:
        return LayerPaths([self.lower], self.upper, self.index, self.baseline)

    @contextmanager
    def layers(self) -> Iterator[Layers]:
        with open_layers(self.paths) as layers:
            yield layers

    def findings(self, *paths: bytes, renames: bool = True) -> list[PathChange]:
        with self.layers() as layers:
            return scan(layers, paths, renames=renames)

    def found(self, *paths: bytes, renames: bool = True) -> list[str]:
        """What a scan finds, in short."""
        return [in_short(finding) for finding in self.findings(*paths, renames=renames)]

    def conflicts(self) -> dict[str, str]:
        """Every conflict by its path."""
        return {
            os.fsdecode(finding.path): finding.conflict
            for finding in self.findings()
            if finding.conflict is not None
        }

    def patch(self, *, renames: bool = True, binary: bool = True) -> bytes:
        """The patch that `diff` would show, with nothing put aside."""
        with self.layers() as layers:
            found = survey(layers, renames=renames)
            changes = file_changes(found, found.findings, renames=renames)
            return b"".join(patch(load(change), binary=binary) for change in changes)


class State(NamedTuple):
    """What a path is: type and permissions, and content or target."""

    mode: int
    content: bytes


States = dict[bytes, State]


def view_states(sandbox: Verbs) -> States:
    """Everything in the view, without its root."""
    found: States = {}
    pending = [b""]
    while pending:
        directory = pending.pop()
        for name in sandbox.names(directory or "."):
            path = os.path.join(directory, name)
            mode = sandbox.lstat(path).st_mode
            content = b""
            if stat.S_ISDIR(mode):
                pending.append(path)
            elif stat.S_ISLNK(mode):
                content = sandbox.readlink(path)
            elif stat.S_ISREG(mode):
                content = sandbox.read(path)
            found[path] = State(mode, content)
    return found


def side_state(side: Version) -> State:
    return State(side.mode, side.target if stat.S_ISLNK(side.mode) else side.read())


def as_git_sees(states: States) -> States:
    """Files, executable or not, and symlinks: all that a patch can carry."""
    kept: States = {}
    for path, (mode, content) in states.items():
        if stat.S_ISREG(mode):
            kept[path] = State(0o100755 if mode & 0o100 else 0o100644, content)
        elif stat.S_ISLNK(mode):
            kept[path] = State(stat.S_IFLNK, content)
    return kept


def apply_patch(
    text: bytes, root: Path, command: tuple[str, ...] = ("git", "apply", "--binary", "-")
) -> None:
    """Have *command* apply the patch *text* in *root*."""
    if not text:
        return
    # No repository around may have a say.
    environment = {**os.environ, "GIT_DIR": "/nonexistent", "LC_ALL": "C"}
    ended = subprocess.run(command, input=text, cwd=root, env=environment, capture_output=True, check=False)
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    assert ended.returncode == 0, said + text.decode(errors="replace")


def in_short(finding: PathChange) -> str:
    path = os.fsdecode(finding.path) or "."
    if finding.is_dir:
        path += "/"
    came_from = "" if finding.old_path is None else f"{os.fsdecode(finding.old_path)} -> "
    return f"{finding.kind.value} {came_from}{path}{'!' if finding.conflict else ''}"


def host_states(root: Path) -> States:
    """Everything below a directory of the host."""
    return view_states(HostTree(root))


class Stored(Reviewed):
    """The same, known to the command line under the name `app`."""

    def __init__(self, place: Path, tree: Tree) -> None:
        super().__init__(place, tree)
        self.store = Store(Locations.from_environment())
        record = SandboxRecord("app", self.host, place / "view", datetime.now(UTC))
        self.store.create(record).release()
        self.places = self.store.places("app")
        for path, layer in (
            (self.places.upper, self.upper),
            (self.places.index, self.index),
            (self.places.baseline, self.baseline),
        ):
            path.rmdir()
            path.symlink_to(layer)

    def upper_clock(self) -> int:
        """A time after everything that was done so far and before everything that is done from now on."""
        probe = self.places.home / "probe"
        probe.touch()
        now = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == now:
            probe.chmod(0o600)
        return now
