"""Which rules are there before anybody wrote one?

They let a program use git and keep it from planting code that the git of the host would run: what is in the
workspace's repositories and names programs to start is read-only. Repositories that the sandbox itself makes
(`git init`, `git clone`, `git worktree add`) are not restricted, or making them would fail; `commit` leaves
them out unless it is told otherwise. A preset is a mode for the workspace, with or without any rules.
"""

from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.policy.model import Kind, Mode, Needs, Rule, Source

SOURCE = Source(Kind.BUILT_IN)

# In a repository's own directory. Each rule also keeps the name from being made, moved or replaced.
_IN_GIT_DIRECTORY = (
    "hooks",  # programs that git starts
    "config",  # core.fsmonitor, core.hooksPath, core.pager, filter.*, alias.*: each names a program
    "config.worktree",  # the same for one worktree
    "commondir",  # usually absent; when present, git reads config and hooks from where it points
)
# Not protected, on purpose: info/attributes and .gitattributes only choose among filters that config defines;
# objects/info/alternates, packed-refs, HEAD and refs are data that commits and branches must change; the
# "exec" lines of an unfinished rebase run only when somebody continues it, and every rebase must write them.

BUILT_IN: tuple[Rule, ...] = (
    *(Rule(f"**/.git/{name}", Mode.RO, SOURCE, needs=Needs.PARENT) for name in _IN_GIT_DIRECTORY),
    # The repositories of submodules, which may lie in each other and have slashes in their names.
    *(Rule(f"**/.git/modules/**/{name}", Mode.RO, SOURCE, needs=Needs.PARENT) for name in _IN_GIT_DIRECTORY),
    # What a linked worktree on the host reads here. It has no config and no hooks of its own.
    Rule("**/.git/worktrees/*/commondir", Mode.RO, SOURCE, needs=Needs.PARENT),
    Rule("**/.git/worktrees/*/config.worktree", Mode.RO, SOURCE, needs=Needs.PARENT),
    # In a linked worktree and in a submodule `.git` is a file that says where the repository is: pointed
    # elsewhere, it brings config and hooks along. One that is not there yet may be made.
    Rule("**/.git", Mode.RO, SOURCE, needs=Needs.ENTRY, files_only=True),
)


class Preset(StrEnum):
    """A policy in one word."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"
    FULL_ACCESS = "full-access"


@dataclass(frozen=True)
class Settings:
    """What a preset stands for."""

    mode: Mode
    enabled: bool


PRESETS = {
    Preset.READ_ONLY: Settings(Mode.RO, enabled=True),
    Preset.WORKSPACE_WRITE: Settings(Mode.RW, enabled=True),
    Preset.FULL_ACCESS: Settings(Mode.RW, enabled=False),
}
