"""Where is the git repository of a work tree that does not hold it?

In a linked work tree and in a submodule `.git` is a file that names a directory elsewhere, without which git
does nothing. What the file says is believed only where a repository is found: anybody may have written it.
"""

from pathlib import Path

_WORD = "gitdir:"
# No name of a directory is longer.
_LONGEST = 4096 + len(_WORD)


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
