"""Confinement detection: what this machine can do, found by trying it.

Found out by trying: what a kernel, a container or a security module allows cannot be read off its settings.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sandboxfs.confine import kernel_calls, landlock
from sandboxfs.confine.mounts import (
    ConfinedMounts,
    System,
    bubblewrap_arguments,
    find_system,
    interpreter_directory,
)
from sandboxfs.errors import MountFailed
from sandboxfs.paths import find_program

INSTALL = "apt install bubblewrap"
_USER_NAMESPACES = (
    "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 "
    "(those that exist, as root); in a container: docker run --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined"
)
_PATIENCE = 30


class Confinement(StrEnum):
    """What keeps a program in."""

    AUTO = "auto"
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


@dataclass(frozen=True)
class ProbeResult:
    """What trying bubblewrap or Landlock gave: *problem* is why it cannot be used, *mend* what would help.

    *abi* is the version of the kernel's Landlock, which mends one thing of bubblewrap as well. *attended*:
    with Landlock, attributes of files can be kept from being changed outside the view.
    """

    problem: str | None = None
    mend: str | None = None
    program: Path | None = None
    sizes: bool = True
    abi: int = 0
    attended: bool = False


@dataclass(frozen=True)
class ConfinementChoice:
    """The confinement to use; *weaker* tells why it is not the strongest one, *mend* what would help."""

    confinement: Confinement
    finding: ProbeResult
    weaker: str | None = None
    mend: str | None = None


def choose(wanted: Confinement, system: System, memory: Path) -> ConfinementChoice:
    """Find the confinement that *wanted* means here; `MountFailed` when it cannot be had.

    That bubblewrap worked is written down at *memory*, and not tried again as long as it is the same one.
    """
    if wanted is Confinement.NONE:
        return ConfinementChoice(
            wanted, ProbeResult(), "the program is not confined: it can do whatever you can"
        )
    tried = None
    if wanted is not Confinement.LANDLOCK:
        tried = _remembered(memory) or _tried_and_remembered(system, memory)
        if tried.problem is None:
            return ConfinementChoice(Confinement.BUBBLEWRAP, tried)
        if wanted is Confinement.BUBBLEWRAP:
            raise MountFailed(f"cannot confine with bubblewrap: {tried.problem}", hint=tried.mend)
    found = try_landlock()
    if found.problem is not None:
        also = "" if tried is None else f"; bubblewrap: {tried.problem}"
        mend = found.mend if tried is None else tried.mend
        raise MountFailed(f"cannot confine with Landlock: {found.problem}{also}", hint=mend)
    if tried is None:
        return ConfinementChoice(Confinement.LANDLOCK, found)
    return ConfinementChoice(Confinement.LANDLOCK, found, tried.problem, tried.mend)


def try_bubblewrap(system: System | None = None) -> ProbeResult:
    """Run a program in a world as `run` makes it."""
    path = find_program("bwrap")
    if path is None:
        return ProbeResult("there is no bwrap on the PATH", INSTALL)
    world = ConfinedMounts(system or find_system(interpreter_directory()), ())
    complaint = ""
    for sizes in (True, False):
        words = bubblewrap_arguments(world, filter_descriptor=None, sizes=sizes)
        complaint = _complaint([str(path), *words, "--", "true"])
        if not complaint:
            return ProbeResult(program=path, sizes=sizes, abi=kernel_calls.landlock_abi())
        if "--size" not in complaint:
            break
    return ProbeResult(complaint, _USER_NAMESPACES, path)


def _remembered(memory: Path) -> ProbeResult | None:
    """What was found out before, if it is about the bubblewrap that is there now."""
    program = find_program("bwrap")
    try:
        word, _, key = memory.read_text().partition(" ")
    except (OSError, ValueError):
        return None
    if program is None or not key or key != _key(program):
        return None
    return ProbeResult(program=program, sizes=word == "sizes", abi=kernel_calls.landlock_abi())


def _tried_and_remembered(system: System, memory: Path) -> ProbeResult:
    found = try_bubblewrap(system)
    if found.problem is None and found.program is not None:
        # It may be that nothing can be written there; then it is tried every time.
        with suppress(OSError, ValueError):
            memory.write_text(f"{'sizes' if found.sizes else 'plain'} {_key(found.program)}")
    return found


def forget(memory: Path) -> None:
    """What was remembered did not hold: try again the next time."""
    with suppress(OSError):
        memory.unlink()


def _key(program: Path) -> str:
    """Tell this very bubblewrap, this start of the machine, and this user from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.geteuid()} {boot} {program.stat().st_mtime_ns} {program}"
    except OSError:
        return ""


def try_landlock() -> ProbeResult:
    """Ask the kernel for its Landlock."""
    abi = kernel_calls.landlock_abi()
    if abi == 0:
        return ProbeResult("this kernel has none, or does not use it", "boot with lsm=landlock,…")
    if abi < landlock.LEAST_ABI:
        return ProbeResult(
            f"version {abi} of the kernel's interface lets files be truncated",
            "use Linux 6.2 or newer",
            abi=abi,
        )
    # Imported here: bubblewrap needs nothing of it.
    from sandboxfs.confine import attribute_calls

    return ProbeResult(abi=abi, attended=attribute_calls.possible())


def _complaint(command: list[str]) -> str:
    """Run *command* and return what it complains about, empty when it succeeds."""
    # Imported here: what was found out before is not tried again.
    import subprocess

    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
            errors="replace",
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[0].removeprefix("bwrap: ") if lines else f"bwrap ended with status {done.returncode}"
