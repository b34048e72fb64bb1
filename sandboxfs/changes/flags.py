"""What about a change should a person look at twice before it reaches the workspace?

    executable  a file that can be run, and could not before
    outside     a symlink whose target is absolute or climbs out of the workspace
    runs        a file that the host runs by itself: git hooks and configuration, shell and editor start-up
                files, editor tasks, agent settings, CI workflows, package scripts and build steps
    large       more than 10 MiB
    secret      a private key, a known kind of token, or a random-looking value given to a telling name
    setuid      a file that takes on another user's or group's rights when it is run, or a directory that
                hands its group on and did not before
    device      a device node

A flag is a hint and never proof: one that is missing says nothing. Deletions have none. Nothing is read here;
what a symlink's way leads through is not looked at, only how the target is written.
"""

import json
import math
import re
import stat
import tomllib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

LARGE = 10 * 1024 * 1024
# How much of a file's start is worth handing over as its head.
HEAD = 64 * 1024


class Flag(StrEnum):
    """One reason to look twice; the module's docstring says what each means."""

    EXECUTABLE = "executable"
    OUTSIDE = "outside"
    RUNS = "runs"
    LARGE = "large"
    SECRET = "secret"  # noqa: S105 - a word for the user, no password
    SETUID = "setuid"
    DEVICE = "device"


@dataclass(frozen=True)
class Look:
    """One side of a change, as far as flags need it; `head` is the start of a file, `target` a symlink's."""

    mode: int
    size: int = 0
    head: bytes = b""
    target: bytes = b""


_RUN_NAMES = frozenset(
    # shells, and programs that read commands when they start
    b".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin"
    b" .zlogout .kshrc .cshrc .tcshrc .login .inputrc .xinitrc .xprofile .xsession .pam_environment .screenrc"
    b" .tmux.conf .vimrc .exrc .nvimrc .nvim.lua .emacs .dir-locals.el .gdbinit .lldbinit .pythonrc .irbrc"
    b" .pryrc .Rprofile .sqliterc .psqlrc .gitconfig .gitmodules .envrc .mise.toml mise.toml"
    # hooks and CI
    b" .pre-commit-config.yaml .pre-commit-config.yml lefthook.yml .lefthook.yml .overcommit.yml .huskyrc"
    b" .gitlab-ci.yml .travis.yml azure-pipelines.yml bitbucket-pipelines.yml .drone.yml .woodpecker.yml"
    b" appveyor.yml .appveyor.yml Jenkinsfile .cirrus.yml"
    # package managers and builds
    b" setup.py sitecustomize.py usercustomize.py build.rs .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs"
    b" binding.gyp pip.conf"
    # editors and agents
    b" devcontainer.json .devcontainer.json .mcp.json".split()
)
_RUN_PLACES = re.compile(
    rb"(?:\A|/)(?:"
    rb"\.git|"
    rb"\.git/(?:.*/)?(?:config(?:\.worktree)?|hooks/.+|info/attributes)|"
    rb"\.(?:husky|githooks)/.+|"
    rb"\.(?:github|gitea|forgejo)/(?:workflows|actions)/.+|"
    rb"\.(?:circleci|buildkite|woodpecker|devcontainer)/.+|"
    rb"\.vscode/(?:tasks|launch|settings|mcp)\.json|"
    rb"\.idea/(?:runConfigurations/.+|workspace\.xml|externalDependencies\.xml)|"
    rb"\.run/[^/]+\.run\.xml|"
    rb"\.claude/(?:settings[^/]*\.json|hooks/.+)|\.cursor/(?:mcp|hooks)\.json|\.gemini/settings\.json|"
    rb"\.codex/(?:config\.toml|hooks\.json)|"
    rb"\.cargo/config(?:\.toml)?|\.yarn/(?:releases|plugins)/.+|"
    rb"\.config/(?:fish|autostart|systemd/user|environment\.d)/.+|\.config/git/(?:config|attributes)|"
    rb"\.ssh/(?:config|rc|authorized_keys)|"
    rb"[^/]+\.(?:pth|code-workspace)"
    rb")\Z",
    re.DOTALL,
)
_SECRET_NAMES = re.compile(
    rb"(?:\A|/)(?:id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.pgpass|\.git-credentials|\.aws/credentials)\Z"
)
# A word that is quickly looked for, and the pattern that is then worth trying.
_TOKENS = [
    (b"PRIVATE KEY", re.compile(rb"-----BEGIN (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----")),
    (b"AKIA", re.compile(rb"\bAKIA[0-9A-Z]{16}\b")),
    (b"ASIA", re.compile(rb"\bASIA[0-9A-Z]{16}\b")),
    (b"AIza", re.compile(rb"\bAIza[0-9A-Za-z_-]{35}")),
    *((b"gh%c_" % kind, re.compile(rb"\bgh%c_[0-9A-Za-z]{36}" % kind)) for kind in b"pousr"),
    (b"github_pat_", re.compile(rb"\bgithub_pat_[0-9A-Za-z_]{40}")),
    (b"glpat-", re.compile(rb"\bglpat-[0-9A-Za-z_-]{20}")),
    (b"xox", re.compile(rb"\bxox[abeoprs]-[0-9A-Za-z-]{20}")),
    (b"hooks.slack.com/", re.compile(rb"hooks\.slack\.com/services/T[0-9A-Z]+/B[0-9A-Z]+/[0-9A-Za-z]{20}")),
    (b"sk-", re.compile(rb"\bsk-(?:[a-z]{2,8}[0-9]{0,2}-){0,2}[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]{31}")),
    (b"sk_live_", re.compile(rb"\bsk_live_[0-9A-Za-z]{24}")),
    (b"npm_", re.compile(rb"\bnpm_[0-9A-Za-z]{36}")),
    (b"pypi-", re.compile(rb"\bpypi-AgEI[0-9A-Za-z_-]{50}")),
]
_VALUE = re.compile(rb"[:=][ \t]{0,4}[\"']?([0-9A-Za-z+/_=-]{20,200})(?![0-9A-Za-z+/_=.(\[-])")
_TELLING = re.compile(
    rb"(?:password|passwd|secret|token|api[_-]?key|access_?key)[a-z0-9_-]{0,20}[\"']?[ \t]{0,4}\Z",
    re.IGNORECASE,
)
# Quickly looked for, and in every telling name.
_TELLING_WORDS = (b"passw", b"secret", b"token", b"key")
_NAME_LENGTH = 48
_PLACEHOLDER = re.compile(rb"example|placeholder|change|your|dummy|xxxx|0000|1234567", re.IGNORECASE)
_RANDOM_BITS = 3.7
_BARE_REPOSITORY = re.compile(rb"^[ \t]*\[core\]", re.MULTILINE | re.IGNORECASE)


def flags(path: bytes, old: Look | None, new: Look | None, root: bytes | None = None) -> list[Flag]:
    """Return why the change of *path* from *old* to *new* deserves a second look, in a fixed order.

    *path* is relative to the workspace; None stands for nothing there. Given the workspace's absolute path as
    *root*, an absolute symlink into it does not count as leaving it.
    """
    if new is None:
        return []
    found = (
        (Flag.EXECUTABLE, _can_run(new) and not (old and _can_run(old))),
        (Flag.OUTSIDE, stat.S_ISLNK(new.mode) and _leaves(path, new.target, root)),
        (Flag.RUNS, not stat.S_ISDIR(new.mode) and _runs(path, old, new)),
        (Flag.LARGE, stat.S_ISREG(new.mode) and new.size > LARGE),
        (Flag.SECRET, stat.S_ISREG(new.mode) and _tells_secret(path, old, new)),
        (Flag.SETUID, _gains_rights(old, new)),
        (Flag.DEVICE, stat.S_ISCHR(new.mode) or stat.S_ISBLK(new.mode)),
    )
    return [flag for flag, raised in found if raised]


def _can_run(look: Look) -> bool:
    return stat.S_ISREG(look.mode) and bool(look.mode & 0o111)


def _gains_rights(old: Look | None, new: Look) -> bool:
    same_type = old is not None and stat.S_IFMT(old.mode) == stat.S_IFMT(new.mode)
    # A new directory has the bit from the one around it, if that has it.
    if not stat.S_ISREG(new.mode) and not (stat.S_ISDIR(new.mode) and same_type):
        return False
    before = old.mode if old is not None and same_type else 0
    return bool(new.mode & ~before & (stat.S_ISUID | stat.S_ISGID))


def _leaves(path: bytes, target: bytes, root: bytes | None) -> bool:
    """Whether a symlink at *path* points out of the tree, going by its words alone."""
    depth = path.count(b"/")
    if target.startswith(b"/"):
        top = (root or b"").rstrip(b"/") + b"/"
        if root is None or not (target + b"/").startswith(top):
            return True
        depth, target = 0, target[len(top) :]
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            return True
    return False


def _runs(path: bytes, old: Look | None, new: Look) -> bool:
    name = path.rpartition(b"/")[2]
    if name in _RUN_NAMES or _RUN_PLACES.search(path):
        return True
    if stat.S_ISLNK(new.mode):
        # It may stand in for a directory whose files run.
        return _RUN_PLACES.search(path + b"/x") is not None
    if name == b"config":
        return _BARE_REPOSITORY.search(new.head) is not None
    before = old.head if old and stat.S_ISREG(old.mode) else b""
    if name in (b"package.json", b"composer.json"):
        return _json_scripts(before) != _json_scripts(new.head)
    return name == b"pyproject.toml" and _build_steps(before) != _build_steps(new.head)


def _json_scripts(text: bytes) -> object:
    """Return what a package file has its package manager run; the text itself where it cannot be read."""
    try:
        parsed: object = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return text
    return (parsed.get("scripts") or {}) if isinstance(parsed, dict) else text


def _build_steps(text: bytes) -> object:
    """Return what a Python project file has its builder run; the text itself where it cannot be read."""
    try:
        parsed = tomllib.loads(text.decode())
    except (ValueError, RecursionError):
        return text
    tools: object = parsed.get("tool")
    builds = {
        name: tool.get("build")
        for name, tool in (tools.items() if isinstance(tools, dict) else ())
        if isinstance(tool, dict) and tool.get("build")
    }
    return parsed.get("build-system"), builds


def _tells_secret(path: bytes, old: Look | None, new: Look) -> bool:
    if old is None and _SECRET_NAMES.search(path):
        return True
    found = _secrets(new.head)
    return bool(found and found - (_secrets(old.head) if old else set()))


def _secrets(text: bytes) -> set[bytes]:
    found: set[bytes] = set()
    for word, pattern in _TOKENS:
        if word in text:
            found.update(pattern.findall(text))
    lowered = text.lower()
    if not any(word in lowered for word in _TELLING_WORDS):
        return found
    for value in _VALUE.finditer(text):
        if _looks_random(value[1]) and _TELLING.search(
            text[max(0, value.start() - _NAME_LENGTH) : value.start()]
        ):
            found.add(value[1])
    return found


def _looks_random(value: bytes) -> bool:
    """Whether *value* mixes letters and digits as no word and no placeholder does."""
    if _PLACEHOLDER.search(value) or value.isalpha() or not re.search(rb"[0-9]", value):
        return False
    counts = Counter(value).values()
    bits = -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
    return bits >= _RANDOM_BITS
