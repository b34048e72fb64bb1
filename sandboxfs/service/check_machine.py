"""Machine checks: can this machine mount and confine, found by doing it.

Each check is a function that does the thing and answers with one result. They run in the order in which a
failure of one explains those of the next.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxfs.confine import detect
from sandboxfs.control import start_daemon
from sandboxfs.control.request_limit import SETTINGS, SHARE, request_limit
from sandboxfs.control.start_daemon import daemon_environment
from sandboxfs.errors import MountFailed
from sandboxfs.hostfs import probe
from sandboxfs.paths import find_program, make_directories, quoted, remove_directories
from sandboxfs.service.events import CallerContext
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations

Level = Literal["ok", "note", "fail"]

_ELSEWHERE = f"set {STATE_VARIABLE} to a directory that you can write to, on ext4, xfs, btrfs or tmpfs"


@dataclass(frozen=True)
class CheckResult:
    """What one check found; *mend* is the one line that mends a failure."""

    check: str
    level: Level
    finding: str
    mend: str | None = None


def can_mount(results: Iterable[CheckResult]) -> bool:
    """Say whether a mount can be had on a machine of which *results* are known."""
    return not any(result.level == "fail" for result in results)


def check_machine(caller: CallerContext) -> Iterator[CheckResult]:
    """Run all checks, yielding each result as it is known."""
    locations = Locations.from_environment(caller.environment)
    yield _device()
    yield _helper()
    yield _allow_other()
    try:
        made = make_directories(locations.sandboxes)
    except OSError as error:
        yield CheckResult(
            "state directory", "fail", f"cannot make {quoted(locations.state)}: {error}", _ELSEWHERE
        )
    else:
        try:
            yield from _state_directory(locations)
        finally:
            remove_directories(made)
    yield check_waiting(request_limit())
    yield from _confinement()


def check_waiting(limit: float | None) -> CheckResult:
    """Say how long a program may wait for a person, where the kernel ends requests after *limit* seconds."""
    if limit is None:
        return CheckResult("waiting", "ok", "the kernel sets no limit to waiting for a person")
    finding = (
        f"the kernel ends requests after {limit:g} s: none waits more than {limit * SHARE:g} s for a person"
    )
    mend = f"sysctl -w {' '.join(f'fs.fuse.{name}=0' for name in SETTINGS)} (as root), and mount again"
    return CheckResult("waiting", "note", finding, mend)


def _device() -> CheckResult:
    try:
        start_daemon.check_device()
    except MountFailed as error:
        return CheckResult("FUSE device", "fail", error.message, error.hint)
    return CheckResult("FUSE device", "ok", f"{start_daemon.DEVICE} opens")


def _helper() -> CheckResult:
    privileged = start_daemon.is_privileged()
    try:
        start_daemon.check_helper(privileged=False)
    except MountFailed as error:
        # Root mounts without it; everybody else does not.
        return CheckResult("fusermount3", "note" if privileged else "fail", error.message, error.hint)
    return CheckResult("fusermount3", "ok", f"{find_program('fusermount3')} is setuid root")


def _allow_other() -> CheckResult:
    if start_daemon.is_privileged():
        return CheckResult("--allow-other", "ok", "root may use it")
    if start_daemon.allow_other_permitted():
        return CheckResult("--allow-other", "ok", f"{start_daemon.FUSE_CONFIG} permits it")
    mend = f"echo user_allow_other >> {start_daemon.FUSE_CONFIG} (as root)"
    return CheckResult("--allow-other", "note", f"{start_daemon.FUSE_CONFIG} does not permit it", mend)


def _state_directory(locations: Locations) -> Iterator[CheckResult]:
    directory = locations.sandboxes
    if not probe.writable(directory):
        yield CheckResult("state directory", "fail", f"cannot write in {quoted(directory)}", _ELSEWHERE)
        return
    yield CheckResult("state directory", "ok", f"{quoted(locations.state)} can be written")
    if not probe.user_xattrs(directory):
        yield CheckResult(
            "extended attributes", "fail", "the state directory's filesystem has none", _ELSEWHERE
        )
        return
    yield CheckResult("extended attributes", "ok", "kept by the state directory's filesystem")
    if probe.device_whiteouts(directory):
        yield CheckResult("whiteouts", "ok", "character devices")
    else:
        yield CheckResult("whiteouts", "ok", "extended attributes (character devices cannot be made here)")
    if probe.reflinks(directory):
        yield CheckResult("reflinks", "ok", "copies share their blocks")
    else:
        yield CheckResult("reflinks", "note", "not on this filesystem; copying a file up copies its bytes")
    yield _mount(locations)


def _mount(locations: Locations) -> CheckResult:
    """Mount a view with a state of its own, read and write through it, and take it down again."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=locations.sandboxes) as made:
        workspace, view, state = (Path(made, part) for part in ("workspace", "view", "state"))
        for path in (workspace, view, state):
            path.mkdir(mode=0o700)
        (workspace / "file").write_text("below")
        environment = daemon_environment(locations)
        environment |= {STATE_VARIABLE: str(state), CONFIG_VARIABLE: os.devnull}
        command = [sys.executable, "-P", "-m", "sandboxfs"]
        mounted = _run([*command, "mount", str(workspace), str(view)], environment)
        if mounted.returncode != 0:
            return CheckResult(
                "mount", "fail", _complaint(mounted), "see the failures above, if there are any"
            )
        try:
            finding = _use(workspace, view)
        except OSError as error:
            finding = f"the view does not work: {error}"
        unmounted = _run([*command, "unmount", str(view)], environment)
    if unmounted.returncode != 0:
        finding = finding or _complaint(unmounted)
    if finding is not None:
        return CheckResult("mount", "fail", finding)
    return CheckResult("mount", "ok", "a view was mounted, read, written and unmounted")


def _use(workspace: Path, view: Path) -> str | None:
    """Read and write through the view; say what is wrong, if anything is."""
    if (view / "file").read_text() != "below":
        return "the view shows other content than the workspace has"
    (view / "file").write_text("above")
    if (view / "file").read_text() != "above":
        return "the view does not show what was written to it"
    if (workspace / "file").read_text() != "below":
        return "what was written to the view reached the workspace"
    return None


def _confinement() -> Iterator[CheckResult]:
    """Try what keeps a program in, as `run` does, and say which one it uses here and why."""
    wrapped, locked = detect.try_bubblewrap(), detect.try_landlock()
    if wrapped.problem is None:
        yield CheckResult("bubblewrap", "ok", "ran a program in namespaces of its own")
    else:
        yield CheckResult("bubblewrap", "note", f"cannot confine: {wrapped.problem}", wrapped.mend)
    if locked.problem is None:
        yield CheckResult("Landlock", "ok", f"version {locked.abi} of the kernel's interface")
    else:
        yield CheckResult("Landlock", "note", f"cannot confine: {locked.problem}", locked.mend)
    if wrapped.problem is None:
        yield CheckResult("run", "ok", "confines with bubblewrap")
    elif locked.problem is None:
        yield CheckResult(
            "run", "note", "confines with Landlock, which is weaker, because bubblewrap cannot be used"
        )
    else:
        yield CheckResult("run", "note", "cannot confine; only --confine none can be used", wrapped.mend)


def _run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            check=False,
            env=environment,
            errors="replace",
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[0] if lines else f"{done.args[0]} ended with status {done.returncode}"
