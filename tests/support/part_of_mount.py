"""A sandbox that is one directory of a mount shared by many tests.

A daemon takes most of a second to start and to end, far more than most tests of behaviour ask of it. So the
tests of one process share a mount: each has a directory of its own in the workspace, in the view and in the
upper. What a test leaves there stays until the session ends, and no other test looks at it.
"""

from collections.abc import Callable
from pathlib import Path

from tests.support.drivers import HostTree, Sandbox
from tests.support.mount_driver import MountDriver
from tests.support.tree import Tree, build, capture


class MountPool:
    """The mount that tests share: made when first asked for, and anew after a test that failed."""

    def __init__(self, new_place: Callable[[], Path]) -> None:
        self._new_place = new_place
        self._mount: MountDriver | None = None
        self._parts = 0

    def part(self, tree: Tree) -> "PartOfMount":
        if self._mount is None:
            self._mount = _new_mount(self._new_place())
        if not self._mount.is_mounted:
            self._mount.start()
        self._parts += 1
        return PartOfMount(self, self._mount, f"part-{self._parts}", tree)

    def give_up(self) -> None:
        """Leave the mount as it is to whoever looks into the failure; the next test gets a new one."""
        if self._mount is not None:
            self._mount.abandon()
            self._mount = None

    def close(self) -> None:
        """End the mount, and prove that its daemon ended well and that the workspace is what it was."""
        try:
            if self._mount is not None:
                self._mount.host_changed()
                self._mount.finish()
        finally:
            self.give_up()


def _new_mount(place: Path) -> MountDriver:
    (place / "run").mkdir(mode=0o700)
    # The runtime directory of one test is not that of the next.
    return MountDriver(
        place, build(place / "workspace", {}), environment={"XDG_RUNTIME_DIR": str(place / "run")}
    )


class PartOfMount(HostTree, Sandbox):
    kind = "mount"

    def __init__(self, pool: MountPool, mount: MountDriver, name: str, tree: Tree) -> None:
        super().__init__(mount.root / name)
        self.lower = build(mount.lower / name, tree)
        self.upper = mount.upper / name
        self.top = name.encode()
        self.work, self.baseline = mount.work, mount.baseline
        self._pool, self._mount = pool, mount
        self._is_well = False
        self._pristine = capture(self.lower)

    def start(self) -> None:
        self._mount.start()

    def stop(self) -> None:
        self._mount.stop()

    def forget(self) -> None:
        self._mount.forget()

    def finish(self, check: Callable[[], None] = lambda: None) -> None:
        self._check_end(check)
        self._mount.check_log()
        self._is_well = True

    def abandon(self) -> None:
        if not self._is_well:
            self._pool.give_up()
