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


def user_path(given: str) -> Path:
    """Make a path that a person typed absolute, `~` understood; nothing is looked at."""
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"no such user in {quoted(given)}") from error


def inside(
    given: str, workspace: Path, mountpoint: Path | None, current: str | None, table: MountTable
) -> str | None:
    """Return the path inside *workspace* that *given* means, "" for all of it; None for one outside.

    A relative one starts at the *current* directory when that leads into the workspace or into the view at
    *mountpoint*, else at the workspace.
    """
    if not given or "\0" in given:
        raise UsageError("the path is empty" if not given else f"bad path {quoted(given)}")
    tops = [workspace] if mountpoint is None else [mountpoint, workspace]
    # The innermost first: a mountpoint may lie in the workspace.
    tops.sort(key=lambda top: len(top.parts), reverse=True)
    try:
        path = Path(given).expanduser()
    except RuntimeError as error:
        raise UsageError(f"no such user in {quoted(given)}") from error
    starts = [workspace] if current is None else [Path(current), workspace]
    if any(starts[0].is_relative_to(top) for top in tops):
        del starts[1:]
    for start in starts:
        try:
            found = _below(Path(os.path.normpath(start / path)), tops, workspace, table)
        except OSError as error:
            raise UsageError(f"cannot use {quoted(given)}: {error.strerror}") from error
        if found is not None:
            return found
    return None


def _below(path: Path, tops: list[Path], workspace: Path, table: MountTable) -> str | None:
    """Return the way from the workspace or the view to *path*."""
    shown = next((workspace / path.relative_to(top) for top in tops if path.is_relative_to(top)), path)
    # What links lead to comes first: that is what a rule is asked about.
    spellings = [table.resolve(shown.parent) / shown.name, shown, table.resolve(shown)]
    if shown == workspace:
        del spellings[0]
    for spelling in spellings:
        if spelling.is_relative_to(workspace):
            relative = str(spelling.relative_to(workspace))
            return "" if relative == "." else relative
    return None


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
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return False
    return False
