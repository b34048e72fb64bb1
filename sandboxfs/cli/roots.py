"""Which places does a run show beside the workspace, and how is each served?

A directory that is allowed, and the user's home where it is copy-on-write, is a sandbox of its own beside the
first: a companion, with a daemon, an upper and a log of its own, bound to its own absolute path. A file can
be shown for reading only.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.confine.home import Home, check_shown_home
from sandboxfs.confine.system import IMPOSSIBLE
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.config import Allow
from sandboxfs.policy.model import Mode

_COW = "use --home cow, which hides the secrets in it"


@dataclass(frozen=True)
class Root:
    """A directory beside the workspace, with the mode of what no rule names there."""

    path: Path
    mode: Mode


@dataclass(frozen=True)
class Beside:
    """What is shown beside the workspace: *roots* and the *home* as companions, *files* for reading."""

    roots: tuple[Root, ...] = ()
    files: tuple[Path, ...] = ()
    home: Path | None = None


def check_workspace(workspace: Path, home: Path, kind: Home) -> None:
    """Refuse a *workspace* that cannot be confined, or that would show what *home* keeps secret."""
    if workspace in IMPOSSIBLE:
        raise UsageError(f"cannot run in {quoted(workspace)}: choose a directory to work on")
    if home.is_relative_to(workspace) and kind is not Home.COW:
        what = "is" if home == workspace else "holds"
        raise UsageError(f"the workspace {quoted(workspace)} {what} your home directory", hint=_COW)


def sort_out(allows: Iterable[Allow], workspace: Path, home: Path, kind: Home) -> Beside:
    """Check the places that are allowed outside *workspace* and say how each is shown."""
    roots: list[Root] = []
    files: list[Path] = []
    for allow in allows:
        path = _resolved(allow)
        if path.is_dir():
            _check_root(allow, path, workspace, home, [root.path for root in roots])
            roots.append(Root(path, allow.mode))
        elif allow.mode is not Mode.RO:
            raise _refusal(allow, "only a directory can be allowed for writing", f"{allow.path}:ro")
        else:
            files.append(path)
    shown_home = home if kind is Home.COW and not home.is_relative_to(workspace) else None
    if shown_home is not None:
        check_shown_home(shown_home)
    return Beside(tuple(roots), tuple(files), shown_home)


def _resolved(allow: Allow) -> Path:
    if allow.mode not in (Mode.RO, Mode.RW):
        raise _refusal(allow, f"a place outside the workspace cannot be '{allow.mode.value}'")
    try:
        path = MountTable.read().resolve(os.path.expanduser(allow.path))  # noqa: PTH111 - it may be relative to nothing
        there = path.exists()
    except (OSError, ValueError) as error:
        raise _refusal(allow, str(error)) from error
    if not there:
        raise _refusal(allow, "no such file or directory")
    return path


def _check_root(allow: Allow, path: Path, workspace: Path, home: Path, others: list[Path]) -> None:
    if path in IMPOSSIBLE:
        raise _refusal(allow, "it cannot be put into a world of its own")
    if workspace.is_relative_to(path):
        raise _refusal(allow, f"the workspace {quoted(workspace)} lies inside it")
    if home.is_relative_to(path):
        raise _refusal(
            allow, "your home directory lies inside it" if home != path else "it is your home", _COW
        )
    for other in others:
        if path.is_relative_to(other) or other.is_relative_to(path):
            raise _refusal(allow, f"it and {quoted(other)} lie inside one another")


def _refusal(allow: Allow, reason: str, hint: str | None = None) -> UsageError:
    return UsageError(f"{allow.source}: cannot allow {quoted(allow.path)}: {reason}", hint=hint)
