"""Workspaces: the paths in them that a person means, their identity, and their work tree of git.

A person names a file as it is called where they stand: in the workspace, in the view, or by its place inside
either. Links that lead there are followed; below the top of either every name stands for itself, as it does
in a list of changes: the sandbox may have made something else of what is a link in the workspace. The view is
never looked at, because its daemon may be dead or hung.

In a linked work tree and in a submodule `.git` is a file that names a directory elsewhere, without which git
does nothing. What the file says is believed only where a repository is found: anybody may have written it.

A directory that is not the one that the sandbox was made for is refused: the record has its identity. A
sandbox without changes and without records takes the directory that is at its workspace's path; for every
other a person says that the directory was replaced on purpose.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import DirectoryIdentity, identity_of
from sandboxfs.paths import quoted
from sandboxfs.review.git_user import user_excludes as user_excludes
from sandboxfs.review.git_user import user_setting as user_setting
from sandboxfs.state.disk import is_empty
from sandboxfs.state.locations import SandboxPlaces, home_directory
from sandboxfs.state.store import SandboxRecord

if TYPE_CHECKING:
    from sandboxfs.service.events import CallerContext


def current_directory() -> str | None:
    """Return where we stand by name alone: it may lie on a dead mount, or be gone."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd() is the same and hides that nothing is looked at
    except OSError:
        return None


def holds_home(workspace: Path) -> bool:
    """Say whether *workspace* is the user's home directory or one above it, going by `$HOME` or the system.

    What is committed there is read by every shell and program of the user (`~/.bashrc`, `~/.gitconfig`), so
    it is never committed by the way.
    """
    homes = (home_directory(os.environ), home_directory({}))
    return any(home.is_relative_to(workspace) for home in homes)


def user_path(given: str, current: str | None = None) -> Path:
    """Make a path that a person typed in the directory *current* absolute, `~` understood.

    Nothing is looked at. Without *current* the directory is that of this process.
    """
    try:
        path = Path(given).expanduser()
        return path.absolute() if current is None else current / path
    except RuntimeError as error:
        raise UsageError(f"no such user in {quoted(given)}") from error
    except OSError as error:
        raise UsageError(
            f"cannot use {quoted(given)}: the current directory is gone", hint="go to one that exists"
        ) from error


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


def place_in(record: SandboxRecord, given: str, current: str | None = None) -> str:
    """Return the path in the workspace of *record* that a person in the directory *current* calls *given*."""
    here = current_directory() if current is None else current
    place = inside(given, record.workspace, record.mountpoint, here, MountTable.read())
    if place is None:
        raise UsageError(
            f"{quoted(given)} is not in the workspace {quoted(record.workspace)}",
            hint="a sandbox serves one workspace; mount another for other places",
        )
    return place


def named_paths(record: SandboxRecord, paths: Iterable[str], caller: "CallerContext") -> dict[bytes, str]:
    """Return the paths in the workspace of *record* that a person means, each with how it was typed."""
    return {os.fsencode(place_in(record, path, caller.directory)): path for path in paths}


# The git work tree

_WORD = "gitdir:"
# No name of a directory is longer.
_LONGEST = 4096 + len(_WORD)

_CEILINGS = "GIT_CEILING_DIRECTORIES"


def worktree(here: Path, ceilings: frozenset[str] = frozenset()) -> Path | None:
    """Return the top of the git work tree around the directory *here*; git itself would read configuration.

    The search ends below *ceilings* and at the edge of a filesystem, as git's does.
    """
    try:
        device = here.stat().st_dev
        for place in (here, *here.parents):
            if place != here and (str(place) in ceilings or place.stat().st_dev != device):
                return None
            if _is_repository(place / ".git"):
                return place
    except OSError:
        return None
    return None


def _is_repository(git: Path) -> bool:
    """Say whether git would look for no other `.git` further up."""
    return git.is_file() or os.path.lexists(git / "HEAD")


def own_worktree(here: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the top of the work tree around *here* that a run may take for its workspace unasked.

    Not the user's home or a directory above it, and not another user's work tree, as git has it since
    CVE-2022-24765: a `.git` in a directory that others may write to says nothing.
    """
    ceilings = frozenset(
        os.path.realpath(path) for path in environment.get(_CEILINGS, "").split(os.pathsep) if path
    )
    found = worktree(here, ceilings)
    if found is None or home_directory(environment).is_relative_to(found):
        return None
    try:
        owners = {found.stat().st_uid, (found / ".git").lstat().st_uid}
    except OSError:
        return None
    return found if owners == {os.geteuid()} else None


def repository_outside(workspace: Path) -> Path | None:
    """Return the directory to show with *workspace* so that git finds its repository; None if it does so."""
    git = _named_in(workspace / ".git", _WORD)
    if git is None or not (git / "HEAD").is_file():
        return None
    common = _named_in(git / "commondir") or git
    if common.is_relative_to(workspace) or not (
        (common / "objects").is_dir() and (common / "HEAD").is_file()
    ):
        return None
    # With the work tree around it, so that the rules about repositories hold in it.
    around = common.parent
    return around if common.name == ".git" and not workspace.is_relative_to(around) else common


def _named_in(file: Path, word: str = "") -> Path | None:
    """The directory that *file* names after *word*, relative to where it is."""
    try:
        if not file.is_file():
            return None
        with file.open(errors="surrogateescape") as stream:
            text = stream.read(_LONGEST + 1)
        if len(text) > _LONGEST or not text.startswith(word):
            return None
        return (file.parent / text.removeprefix(word).strip()).resolve()
    except (OSError, ValueError, RuntimeError):
        return None


# The identity of a workspace

REPLACED = "--workspace-replaced"


def check_same(record: SandboxRecord, workspace: HostDir) -> None:
    """Raise `UsageError` unless the opened *workspace* is the directory that *record* is about."""
    now = identity_of(workspace.fd)
    if record.identity is not None and not record.identity.is_same(now):
        raise _refusal(record, record.identity.why_not(now))


def is_another(record: SandboxRecord) -> bool:
    """Say whether another directory than that of *record* is at its workspace's path."""
    now = _seen(record.workspace)
    return record.identity is not None and now is not None and not record.identity.is_same(now)


def identity_for(
    workspace: Path, previous: SandboxRecord | None, places: SandboxPlaces | None, *, replaced: bool
) -> DirectoryIdentity | None:
    """Return the identity to record for *workspace*, None while it is to be made.

    *previous* is the record of the sandbox that is resumed, kept in *places*. A directory that is not the one
    of *previous* is refused, unless it was *replaced* on purpose or the sandbox has nothing to lose.
    """
    now = _seen(workspace)
    if previous is None or places is None or previous.identity is None:
        return now
    if now is None:
        return previous.identity
    if previous.identity.is_same(now):
        # A record of an earlier version does not know the volume.
        return replace(previous.identity, volume=previous.identity.volume or now.volume)
    why = previous.identity.why_not(now)
    if is_empty(places.upper) and is_empty(places.commits):
        return now
    if not replaced:
        raise _refusal(previous, why)
    from sandboxfs.service.records import interruption

    interrupted = interruption(places)
    if interrupted is not None:
        raise UsageError(f"cannot use workspace {quoted(workspace)}: {why}; {interrupted}")
    return now


def _seen(workspace: Path) -> DirectoryIdentity | None:
    try:
        with HostDir.at(workspace) as opened:
            return identity_of(opened.fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot use workspace {quoted(workspace)}: {error.strerror}") from error


def _refusal(record: SandboxRecord, why: str) -> UsageError:
    return UsageError(
        f"{quoted(record.workspace)} is not the directory that sandbox '{record.name}' was made for: {why}",
        hint="bring that directory back, for example by mounting its disk; if it was replaced on purpose: "
        f"'sandboxfs mount --name {record.name} {REPLACED}'",
        details={"workspace": str(record.workspace), "name": record.name},
    )


def as_boolean(value: str) -> bool | None:
    """Read a setting that may be a boolean; None where it is something else."""
    word = value.lower()
    if word in ("true", "yes", "on") or (word.isdecimal() and int(word) != 0):
        return True
    return False if word in ("", "false", "no", "off") or word.isdecimal() else None
