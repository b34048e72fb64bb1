"""Which path of the workspace does a person mean?

A person names a file as it is called where they stand: in the workspace, in the view, or by its place inside
either. The view is never looked at, because its daemon may be dead or hung; links on the way are those of the
workspace, and the last name stands for itself, be it a link or not there at all.
"""

import os
import stat
from pathlib import Path

from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.record import SandboxRecord


def current_directory() -> str | None:
    """Return where we stand by name alone: it may lie on a dead mount, or be gone."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd() is the same and hides that nothing is looked at
    except OSError:
        return None


def inside(
    given: str, workspace: Path, mountpoint: Path | None, current: str | None, table: MountTable
) -> str | None:
    """Return the path inside *workspace* that *given* means, "" for all of it; None for one outside.

    A relative one starts at the *current* directory when that is in the workspace or in the view at
    *mountpoint*, else at the workspace.
    """
    if not given or "\0" in given:
        raise UsageError("the path is empty" if not given else f"bad path {quoted(given)}")
    tops = [workspace] if mountpoint is None else [mountpoint, workspace]
    start = workspace
    if current is not None and any(Path(current).is_relative_to(top) for top in tops):
        start = Path(current)
    try:
        path = start / Path(given).expanduser()
    except RuntimeError as error:
        raise UsageError(f"no such user in {quoted(given)}") from error
    spellings = [Path(os.path.normpath(path))]
    if spellings[0] != Path("/"):
        try:
            followed = table.resolve(_moved(spellings[0].parent, tops, workspace))
        except OSError as error:
            raise UsageError(f"cannot use {quoted(given)}: {error.strerror}") from error
        # What links lead to comes first: that is what a rule is asked about.
        spellings.insert(0, followed / spellings[0].name)
        spellings.append(table.resolve(path))
    for spelling in spellings:
        for top in sorted(tops, key=lambda top: len(top.parts), reverse=True):
            if spelling.is_relative_to(top):
                relative = str(spelling.relative_to(top))
                return "" if relative == "." else relative
    return None


def _moved(path: Path, tops: list[Path], workspace: Path) -> Path:
    """Return the place in the workspace that *path* in the view shows."""
    for top in tops:
        if top != workspace and path.is_relative_to(top):
            return workspace / path.relative_to(top)
    return path


def place_in(record: SandboxRecord, given: str) -> str:
    """Return the path in the workspace of *record* that a person calls *given*."""
    place = inside(given, record.workspace, record.mountpoint, current_directory(), MountTable.read())
    if place is None:
        raise UsageError(
            f"{quoted(given)} is not in the workspace {quoted(record.workspace)}",
            hint="a sandbox serves one workspace; mount another for other places",
        )
    return place


def is_directory(upper: Path, workspace: Path, place: str) -> bool:
    """Tell whether the sandbox shows a directory at *place*, as far as its two layers say so plainly."""
    for layer in (upper, workspace):
        try:
            return stat.S_ISDIR(os.lstat(layer / place).st_mode)
        except (OSError, ValueError):
            continue
    return False
