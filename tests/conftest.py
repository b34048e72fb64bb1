"""The ground that every test stands on: an environment of its own, and a sandbox that proves its promises.

The fixtures `sandbox` and `make_sandbox` run a test twice: against the core in process, and through a mount.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, Phase, settings

from sandboxfs.confine.environment import is_permitted
from tests.support import conditions
from tests.support.drivers import Sandbox
from tests.support.mount_driver import MountDriver
from tests.support.mounted import package_found
from tests.support.mounts import detach_below, sweep_stale_mounts
from tests.support.part_of_mount import MountPool
from tests.support.tree import Fifo, File, HardLink, Symlink, Tree, build

settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=40,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
# The same tree gives the same verdict; new examples are looked for wherever else the tests are run.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
usual = "ci" if os.environ.get("CI") == "true" else "default"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))

# What most tests find in the workspace.
STANDARD: Tree = {
    "file": "lower text\n",
    "other": "other lower text\n",
    "empty": "",
    "script": File("#!/bin/sh\n", mode=0o755),
    "tagged": File("tagged\n", xattrs={"user.colour": b"red", "user.shape": b"round"}),
    "dir/one": "1\n",
    "dir/two": "2\n",
    "dir/deep/leaf": "leaf\n",
    "dir/deep/er/bottom": "bottom\n",
    "hollow/": "",
    "link": Symlink("file"),
    "dirlink": Symlink("dir"),
    "dangling": Symlink("nowhere"),
    "hard1": "shared\n",
    "hard2": HardLink("hard1"),
    "dir/hard3": HardLink("hard1"),
    "fifo": Fifo(),
}


class MakeSandbox(Protocol):
    def __call__(self, tree: Tree) -> Sandbox: ...


def pytest_configure() -> None:
    """Have signals as a terminal gives them: whoever runs the tests in the background may ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # As Ctrl-C: fixtures end what they have mounted. A process that a test forks ends by it as ever.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # The tests stay as deaf to it as nohup made them; a handler is not handed on to what they start.
        signal.signal(signal.SIGHUP, lambda number, frame: None)


# The marks that a test has by the folder that it stands in.
MARKS = {"mount": ("mount",), "security": ("mount", "security"), "workloads": ("mount", "workload")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for mark in MARKS.get(item.path.relative_to(here).parts[0], ()):
                item.add_marker(mark)


def pytest_report_header() -> list[str]:
    return conditions.report()


@pytest.fixture(scope="session", autouse=True)
def _no_mount_outlives_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The first fixture, and so the last that ends: also where others were interrupted before they could."""
    basetemp = tmp_path_factory.getbasetemp()
    sweep_stale_mounts(basetemp)
    yield
    for left in detach_below(basetemp):
        sys.stderr.write(f"left mounted, and taken away now: {left}\n")


@pytest.fixture(autouse=True)
def _umask_of_its_own() -> Iterator[None]:
    """Modes come out the same whoever runs the tests, and whatever a test before did."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("mount"):
        conditions.require_fuse()


@pytest.fixture(autouse=True)
def _environment_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test sees or changes the sandboxes, the configuration or the git settings of whoever runs it."""
    place = tmp_path_factory.mktemp("env")
    for variable, value in list(os.environ.items()):
        # What a run would not pass on, it would name.
        ordinary = is_permitted(variable, value) and not variable.startswith("GIT_")
        if not ordinary and variable not in (conditions.REQUIRE, "TMPDIR"):
            monkeypatch.delenv(variable)
    for variable, folder in {
        "HOME": "home",
        "SANDBOXFS_STATE_DIR": "state",
        "XDG_DATA_HOME": "data",
        "XDG_CONFIG_HOME": "config",
        "XDG_CACHE_HOME": "cache",
        "XDG_STATE_HOME": "xdg-state",
        "XDG_RUNTIME_DIR": "run",
    }.items():
        monkeypatch.setenv(variable, str(place / folder))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    # The runtime directory is the one that a login makes; the rest is made by whoever needs it first.
    (place / "run").mkdir(mode=0o700)
    (place / "home").mkdir()
    # The package is found wherever a command or a daemon starts.
    root = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))


@pytest.fixture(scope="session")
def mount_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountPool]:
    """The mount that tests of behaviour share."""
    pool = MountPool(lambda: tmp_path_factory.mktemp("pool"))
    with package_found():
        yield pool
        pool.close()


@pytest.fixture(params=["core", pytest.param("mount", marks=pytest.mark.mount)])
def make_sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture, mount_pool: MountPool
) -> Iterator[MakeSandbox]:
    """Makes a sandbox over a workspace built from a tree, once in a test.

    A mounted one is a part of a mount that tests share, unless the test is marked `own_mount`.
    """
    made: list[Sandbox] = []
    umask = os.umask(0)
    is_own = request.node.get_closest_marker("own_mount") is not None

    def make(tree: Tree) -> Sandbox:
        if request.param == "core":
            # The core is imported late, so that the tests of everything else do not depend on it.
            from tests.support.core_driver import CoreDriver

            made.append(CoreDriver(tmp_path / "state", build(tmp_path / "workspace", tree)))
        elif is_own:
            made.append(MountDriver(tmp_path, build(tmp_path / "workspace", tree)))
        else:
            made.append(mount_pool.part(tree))
        return made[-1]

    def check_log() -> None:
        warnings = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
        assert not warnings, f"logged: {warnings}"

    try:
        yield make
        for sandbox in made:
            sandbox.finish(check_log)
    finally:
        for sandbox in made:
            sandbox.abandon()
        os.umask(umask)


@pytest.fixture
def sandbox(make_sandbox: Callable[[Tree], Sandbox]) -> Sandbox:
    """A sandbox over the standard workspace."""
    return make_sandbox(STANDARD)
