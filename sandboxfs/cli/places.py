"""Which path of the workspace does a person mean?

A person names a file as it is called where they stand: in the workspace, in the view, or by its place inside
either. Links that lead there are followed; below the top of either every name stands for itself, as it does
in a list of changes: the sandbox may have made something else of what is a link in the workspace. The view is
never looked at, because its daemon may be dead or hung.
"""

import os
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
    problem: OSError | None = None
    for start in starts:
        try:
            found = _below(Path(os.path.normpath(start / path)), tops, table)
        except OSError as error:
            # Where we stand may be nothing but in the way of what the workspace has.
            problem = error
            continue
        if found is not None:
            return found
    if problem is not None:
        raise UsageError(f"cannot use {quoted(given)}: {problem.strerror}") from problem
    return None


def _below(path: Path, tops: list[Path], table: MountTable) -> str | None:
    """Return the way from the workspace or the view to *path*."""
    resolved = table.resolve(path, keep=tops)
    for top in tops:
        if resolved.is_relative_to(top):
            relative = str(resolved.relative_to(top))
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
