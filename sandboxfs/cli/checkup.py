"""What does `doctor` look at, and how?

Each check is a function that does the thing and answers with one result. They run in the order in which a
failure of one explains those of the next.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxfs.confine import choice
from sandboxfs.control import machine
from sandboxfs.control.launch import daemon_environment
from sandboxfs.errors import MountFailed
from sandboxfs.layers import probe
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.state.locations import CONFIG_VARIABLE, STATE_VARIABLE, Locations

Level = Literal["ok", "note", "fail"]

_ELSEWHERE = f"set {STATE_VARIABLE} to a directory that you can write to, on ext4, xfs, btrfs or tmpfs"


@dataclass(frozen=True)
class Result:
    """What one check found; *mend* is the one line that mends a failure."""

    check: str
    level: Level
    finding: str
    mend: str | None = None


def examine(locations: Locations) -> Iterator[Result]:
    """Run all checks, yielding each result as it is known."""
    yield _device()
    yield _helper()
    yield _allow_other()
    try:
        made = make_directories(locations.sandboxes)
    except OSError as error:
        yield Result("state directory", "fail", f"cannot make {quoted(locations.state)}: {error}", _ELSEWHERE)
    else:
        try:
            yield from _state_directory(locations)
        finally:
            remove_directories(made)
    yield from _confinement()


def _device() -> Result:
    try:
        machine.check_device()
    except MountFailed as error:
        return Result("FUSE device", "fail", error.message, error.hint)
    return Result("FUSE device", "ok", f"{machine.DEVICE} opens")


def _helper() -> Result:
    privileged = machine.is_privileged()
    try:
        machine.check_helper(privileged=False)
    except MountFailed as error:
        # Root mounts without it; everybody else does not.
        return Result("fusermount3", "note" if privileged else "fail", error.message, error.hint)
    return Result("fusermount3", "ok", f"{shutil.which('fusermount3')} is setuid root")


def _allow_other() -> Result:
    if machine.is_privileged():
        return Result("--allow-other", "ok", "root may use it")
    if machine.allow_other_permitted():
        return Result("--allow-other", "ok", f"{machine.FUSE_CONFIG} permits it")
    mend = f"echo user_allow_other >> {machine.FUSE_CONFIG} (as root)"
    return Result("--allow-other", "note", f"{machine.FUSE_CONFIG} does not permit it", mend)


def _state_directory(locations: Locations) -> Iterator[Result]:
    directory = locations.sandboxes
    if not probe.writable(directory):
        yield Result("state directory", "fail", f"cannot write in {quoted(directory)}", _ELSEWHERE)
        return
    yield Result("state directory", "ok", f"{quoted(locations.state)} can be written")
    if not probe.user_xattrs(directory):
        yield Result("extended attributes", "fail", "the state directory's filesystem has none", _ELSEWHERE)
        return
    yield Result("extended attributes", "ok", "kept by the state directory's filesystem")
    if probe.device_whiteouts(directory):
        yield Result("whiteouts", "ok", "character devices")
    else:
        yield Result("whiteouts", "ok", "extended attributes (character devices cannot be made here)")
    if probe.reflinks(directory):
        yield Result("reflinks", "ok", "copies share their blocks")
    else:
        yield Result("reflinks", "note", "not on this filesystem; copying a file up copies its bytes")
    yield _mount(directory)


def _mount(directory: Path) -> Result:
    """Mount a view with a state of its own, read and write through it, and take it down again."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=directory) as made:
        workspace, view, state = (Path(made, part) for part in ("workspace", "view", "state"))
        for path in (workspace, view, state):
            path.mkdir(mode=0o700)
        (workspace / "file").write_text("below")
        environment = daemon_environment(Locations.from_environment())
        environment |= {STATE_VARIABLE: str(state), CONFIG_VARIABLE: os.devnull}
        command = [sys.executable, "-P", "-m", "sandboxfs"]
        mounted = _run([*command, "mount", str(workspace), str(view)], environment)
        if mounted.returncode != 0:
            return Result("mount", "fail", _complaint(mounted), "see the failures above, if there are any")
        try:
            finding = _use(workspace, view)
        except OSError as error:
            finding = f"the view does not work: {error}"
        unmounted = _run([*command, "unmount", str(view)], environment)
    if unmounted.returncode != 0:
        finding = finding or _complaint(unmounted)
    if finding is not None:
        return Result("mount", "fail", finding)
    return Result("mount", "ok", "a view was mounted, read, written and unmounted")


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


def _confinement() -> Iterator[Result]:
    """Try what keeps a program in, as `run` does, and say which one it uses here and why."""
    wrapped, locked = choice.try_bubblewrap(), choice.try_landlock()
    if wrapped.problem is None:
        yield Result("bubblewrap", "ok", "ran a program in namespaces of its own")
    else:
        yield Result("bubblewrap", "note", f"cannot confine: {wrapped.problem}", wrapped.mend)
    if locked.problem is None:
        yield Result("Landlock", "ok", f"version {locked.abi} of the kernel's interface")
    else:
        yield Result("Landlock", "note", f"cannot confine: {locked.problem}", locked.mend)
    if wrapped.problem is None:
        yield Result("run", "ok", "confines with bubblewrap")
    elif locked.problem is None:
        yield Result(
            "run", "note", "confines with Landlock, which is weaker, because bubblewrap cannot be used"
        )
    else:
        yield Result("run", "note", "cannot confine; only --confine none can be used", wrapped.mend)


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
