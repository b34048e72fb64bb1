"""The mounts that the tests work in: one of their own, or a part of one that a module shares."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support import conditions, runs
from tests.support.mount_driver import MountDriver
from tests.support.mounted import INSIDE, Area, SharedMount, package_found, serving
from tests.support.tree import Tree, build


class Mount(Protocol):
    def __call__(self, tree: Tree, *options: str) -> MountDriver: ...


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a view of a workspace built from a tree, once in a test."""
    with ExitStack() as stack:

        def made(tree: Tree, *options: str) -> MountDriver:
            workspace = build(tmp_path / "workspace", tree)
            return stack.enter_context(serving(MountDriver(tmp_path, workspace, *options)))

        yield made


@pytest.fixture(scope="module")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMount]:
    conditions.require_fuse()
    with package_found():
        mount = SharedMount(tmp_path_factory.mktemp("shared"))
        with serving(mount):
            yield mount


@pytest.fixture
def area(shared_mount: SharedMount, request: pytest.FixtureRequest) -> Iterator[Callable[[Tree], Area]]:
    """Makes a directory of the test's own in the shared mount, once in a test."""
    made: list[Area] = []

    def make(tree: Tree) -> Area:
        made.append(Area(shared_mount, re.sub(r"\W+", "-", request.node.name), tree))
        return made[-1]

    yield make
    for one in made:
        one.check_unchanged()


@pytest.fixture(params=runs.CONFINEMENTS)
def confinement(request: pytest.FixtureRequest) -> str:
    """How a run is confined, in each way that there is."""
    runs.require(str(request.param))
    return str(request.param)


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; the verb that it names raises, in every daemon that the test starts (see `inside`)."""
    made = tmp_path / "order"
    made.write_text("")
    monkeypatch.setenv("SANDBOXFS_FAULT", str(made))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(INSIDE), os.environ["PYTHONPATH"]]))
    return made
