"""Built-in rules and presets.

The rules let a program use git and keep the program from planting code that the host's git would run: files
in the workspace's repositories that name programs are read-only. Repositories that the sandbox makes itself
(`git init`, `git clone`, `git worktree add`) are not restricted, or making them would fail; `commit` leaves
them out by default. A preset is a mode for the workspace, with or without any rules; `careful` has
a person look at what is deleted, overwritten, or executed after the sandbox made it.
"""

from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.policy.model import Execute, Hold, Mode, Rule, RuleCondition, RuleSource, SourceKind

SOURCE = RuleSource(SourceKind.BUILT_IN)

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
    *(Rule(f"**/.git/{name}", Mode.RO, SOURCE, needs=RuleCondition.PARENT) for name in _IN_GIT_DIRECTORY),
    # The repositories of submodules, which may lie in each other and have slashes in their names.
    *(
        Rule(f"**/.git/modules/**/{name}", Mode.RO, SOURCE, needs=RuleCondition.PARENT)
        for name in _IN_GIT_DIRECTORY
    ),
    # The files that a linked worktree on the host reads here. It has no config and no hooks of its own.
    Rule("**/.git/worktrees/*/commondir", Mode.RO, SOURCE, needs=RuleCondition.PARENT),
    Rule("**/.git/worktrees/*/config.worktree", Mode.RO, SOURCE, needs=RuleCondition.PARENT),
    # In a linked worktree and in a submodule `.git` is a file with the path of the repository: another path
    # brings other config and hooks along. A new `.git` file may be made.
    Rule("**/.git", Mode.RO, SOURCE, needs=RuleCondition.ENTRY, files_only=True),
)


class Preset(StrEnum):
    """A policy in one word."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"
    FULL_ACCESS = "full-access"
    CAREFUL = "careful"


@dataclass(frozen=True)
class PresetSettings:
    """The mode of a preset, whether rules are enforced, and what waits for a person."""

    mode: Mode
    enabled: bool
    hold: frozenset[Hold] = frozenset()
    new_programs: Execute | None = None


PRESETS = {
    Preset.READ_ONLY: PresetSettings(Mode.RO, enabled=True),
    Preset.WORKSPACE_WRITE: PresetSettings(Mode.RW, enabled=True),
    Preset.FULL_ACCESS: PresetSettings(Mode.RW, enabled=False),
    Preset.CAREFUL: PresetSettings(Mode.RW, enabled=True, hold=frozenset(Hold), new_programs=Execute.ASK),
}
