"""Flags: what a person should look at twice before it reaches the workspace.

A path is looked up by its name and by the first fixed name of each pattern, so that the length of the table
does not matter, and only the outermost and the innermost directory of one name are tried: the time is linear
in the path.

    executable  a file that can be run, and could not before
    outside     a symlink whose target is absolute or climbs out of the workspace
    runs        a file that a tool runs or obeys without being asked (`autorun.txt`), or that the
                configuration of the host's repository names (`git_files`), a symlink or a renamed
                directory in the place of such files, or a project file in which package scripts or build
                steps changed
    large       more than 10 MiB
    secret      a private key, a known kind of token, or a random-looking value given to a telling name
    invisible   a text, or a name, with more of some character than before that cannot be seen, or that
                changes the order of others
    unscanned   a file that was not scanned for secrets, or only in part: the file is too large, the scan's
                budget was used up, or the file cannot be read
    setuid      a file that runs with another user's or group's rights, or a directory that hands its group
                on and did not before
    writable    a file or directory that every user of the machine may write, and not before
    acl         an access list that was not there before: rights that the mode does not show
    device, fifo, socket
                a special file: reading it may have effects, or never end
    policy      sandboxfs' own rules for the workspace, made, changed, moved or removed
    released    an object renamed out of the reach of a rule: the object, or an entry below it, was hidden,
                denied or read-only at the old path

A flag is a hint and never proof: a missing flag says nothing. Deletions have no flag but `policy`. This
module reads no file. A symlink is judged by the text of its target; symlinks on the way of the target are not
followed.

Secrets are found by patterns. A program in the sandbox wrote the text, so each pattern takes time linear in
the text: repetitions are bounded, or end at a character with which no other match can begin. `Budget` bounds
the bytes read, of one file and of all files of a command.
"""

import json
import math
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sandboxfs.paths import invisible, invisible_in
from sandboxfs.review.git_files import NamedByGit
from sandboxfs.review.hunks import is_binary

_TABLE = Path(__file__).with_name("autorun.txt")
# Sections of git's configuration that can name a program, or another file.
_GIT_SECTION = re.compile(
    rb"\[[ \t]*+(?:alias|browser|commit|core|credential|diff|difftool|extensions|filter|gpg|guitool|hook|"
    rb"http|include|includeif|init|instaweb|interactive|log|man|merge|mergetool|pager|protocol|receive|remote|"
    rb"safe|sendemail|sequence|ssh|submodule|tag|trailer|uploadpack|url|web)[] \t\".]",
    re.IGNORECASE,
)
_CONFIG_NAMES = (b"config", b"config.worktree")


class AutorunRule(NamedTuple):
    """Patterns with one reason; *source* is the document that gives the reason."""

    patterns: str
    why: str
    source: str


def table() -> list[AutorunRule]:
    """Read the table of autorun rules."""
    lines = _TABLE.read_text().splitlines()
    return [AutorunRule(*line.split(" | ")) for line in lines if line and not line.startswith("#")]


class _Index:
    """The patterns of the table: whole names, names with a wildcard, and paths by their first name."""

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.places: dict[bytes, list[re.Pattern[bytes]]] = defaultdict(list)
        wild = []
        for pattern in (one.lower().encode() for line in table() for one in line.patterns.split()):
            first, slash, rest = pattern.partition(b"/")
            if slash:
                self.places[first].append(re.compile(_expression(rest), re.DOTALL))
            elif b"*" in pattern:
                wild.append(_expression(pattern))
            else:
                self.names.add(pattern)
        self.wild = re.compile(b"|".join(wild), re.DOTALL)


def _expression(pattern: bytes) -> bytes:
    """Translate *pattern*, which comes without its first name."""
    inner = pattern.removesuffix(b"**")
    parts = [b"(?:.*/)?" if part == b"**/" else _part(part) for part in re.findall(rb"[^/]+/?", inner)]
    return b"".join(parts) + (b".+" if inner != pattern else b"")


def _part(part: bytes) -> bytes:
    return re.escape(part).replace(rb"\*", b"[^/]*")


_INDEX = _Index()


def runs(path: bytes) -> bool:
    """Whether a tool runs or obeys the file at *path*, which is relative to the workspace."""
    parts = path.lower().split(b"/")
    if parts[-1] in _INDEX.names or _INDEX.wild.fullmatch(parts[-1]):
        return True
    return any(pattern.fullmatch(rest) for rest, pattern in _candidates(parts))


def may_hold_what_runs(path: bytes) -> bool:
    """Whether a directory at *path* can hold files that a tool runs or obeys, judging by its name."""
    return path.lower().rpartition(b"/")[2] in _INDEX.places or runs(path + b"/x")


def _candidates(parts: list[bytes]) -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    """Yield the rest of the path behind each name that patterns begin with, and those patterns."""
    seen: dict[bytes, list[int]] = defaultdict(list)
    for at, part in enumerate(parts[:-1]):
        if part in _INDEX.places:
            seen[part].append(at)
    for part, found in seen.items():
        for at in {found[0], found[-1]}:
            rest = b"/".join(parts[at + 1 :])
            for pattern in _INDEX.places[part]:
                yield rest, pattern


def is_git_configuration(path: bytes, text: bytes) -> bool:
    """Whether *text*, at *path*, reads as the configuration of a repository, wherever the repository lies."""
    return path.rpartition(b"/")[2].lower() in _CONFIG_NAMES and _GIT_SECTION.search(text) is not None


LARGE = 10 * 1024 * 1024
# Larger project files are not parsed: any change of one counts as a change of its build steps.
_PARSED = 64 * 1024
# Keys of a package file that name commands run when packages are installed or commits are made.
_PACKAGE_KEYS = (
    "scripts", "husky", "simple-git-hooks", "lint-staged", "pre-commit", "pre-push", "gitHooks",
    "packageManager", "config",
)  # fmt: skip
# Tools whose section in a Python project file can name a plugin or a command.
_CHECKERS = ("pytest", "pylint", "mypy", "coverage", "tox", "poe", "uv", "pdm", "hatch", "cibuildwheel")
# Parsing a dotted key of TOML takes time quadratic in its dots.
_MOST_DOTS = 64

_POLICY = b".sandboxfs.toml"
_NOTHING_NAMED = NamedByGit()

Head = bytes | Callable[[], bytes]


class Flag(StrEnum):
    """One reason to look twice; the module's docstring explains each."""

    EXECUTABLE = "executable"
    OUTSIDE = "outside"
    RUNS = "runs"
    LARGE = "large"
    SECRET = "secret"  # noqa: S105 - a word for the user, no password
    INVISIBLE = "invisible"
    UNSCANNED = "unscanned"
    SETUID = "setuid"
    WRITABLE = "writable"
    ACL = "acl"
    DEVICE = "device"
    FIFO = "fifo"
    SOCKET = "socket"
    POLICY = "policy"
    RELEASED = "released"


@dataclass(frozen=True)
class Look:
    """One version of a path, as flags need it; `head` is the start of a file, `target` that of a symlink.

    The head may be a function, called only when the head is needed. `unread` says that the content changed
    and that the head is only a part of it. `acl` is the access list, empty where there is none.
    """

    mode: int
    size: int = 0
    head: Head = b""
    target: bytes = b""
    unread: bool = False
    acl: frozenset[tuple[bytes, bytes]] = frozenset()


def read(head: Head) -> bytes:
    """Return the bytes of *head*."""
    return head if isinstance(head, bytes) else head()


def flags(
    path: bytes,
    old: Look | None,
    new: Look | None,
    root: bytes | None = None,
    named: NamedByGit = _NOTHING_NAMED,
) -> list[Flag]:
    """Return the flags of the change of *path* from *old* to *new*, in a fixed order.

    *path* is relative to the workspace; None stands for an absent object. With the workspace's absolute path
    as *root*, an absolute symlink into the workspace is not flagged. *named* are further files that git runs.
    """
    if new is None:
        return [Flag.POLICY] if old is not None and _is_policy(path) else []
    found = (
        (Flag.EXECUTABLE, _can_run(new) and not (old and _can_run(old))),
        (Flag.OUTSIDE, stat.S_ISLNK(new.mode) and _leaves(path, new.target, root)),
        (Flag.RUNS, not stat.S_ISDIR(new.mode) and _runs(path, old, new, named)),
        (Flag.LARGE, stat.S_ISREG(new.mode) and new.size > LARGE),
        (Flag.SECRET, stat.S_ISREG(new.mode) and _tells_secret(path, old, new)),
        (Flag.INVISIBLE, bool(invisible_in(os.fsdecode(path))) or _hides(old, new)),
        (Flag.UNSCANNED, stat.S_ISREG(new.mode) and new.unread),
        (Flag.SETUID, _gains_rights(old, new)),
        (Flag.WRITABLE, _is_for_all(new) and not (old and _is_for_all(old))),
        (Flag.ACL, bool(new.acl - (old.acl if old else frozenset()))),
        (Flag.DEVICE, stat.S_ISCHR(new.mode) or stat.S_ISBLK(new.mode)),
        (Flag.FIFO, stat.S_ISFIFO(new.mode)),
        (Flag.SOCKET, stat.S_ISSOCK(new.mode)),
        (Flag.POLICY, _is_policy(path)),
    )
    return [flag for flag, raised in found if raised]


def _hides(old: Look | None, new: Look) -> bool:
    """Whether a text has more of some invisible character than before."""
    now = _hidden(new)
    return bool(now and (old is None or now - _hidden(old)))


def _hidden(look: Look) -> Counter[str]:
    text = read(look.head) if stat.S_ISREG(look.mode) else look.target
    if text.isascii() or is_binary(text):
        return Counter()
    # A byte order mark at the very start tells the encoding.
    return Counter(invisible().findall(text.decode(errors="replace").removeprefix("\ufeff")))


def _is_policy(path: bytes) -> bool:
    return path.lower().rpartition(b"/")[2] == _POLICY


def _is_for_all(look: Look) -> bool:
    return bool(look.mode & stat.S_IWOTH) and not stat.S_ISLNK(look.mode)


def _can_run(look: Look) -> bool:
    return stat.S_ISREG(look.mode) and bool(look.mode & 0o111)


def _gains_rights(old: Look | None, new: Look) -> bool:
    same_type = old is not None and stat.S_IFMT(old.mode) == stat.S_IFMT(new.mode)
    # A new directory inherits the set-group-ID bit from its parent.
    if not stat.S_ISREG(new.mode) and not (stat.S_ISDIR(new.mode) and same_type):
        return False
    before = old.mode if old is not None and same_type else 0
    return bool(new.mode & ~before & (stat.S_ISUID | stat.S_ISGID))


def _leaves(path: bytes, target: bytes, root: bytes | None) -> bool:
    """Whether a symlink at *path* points out of the tree, going by the text of its target alone."""
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


def _runs(path: bytes, old: Look | None, new: Look, named: NamedByGit) -> bool:
    if runs(path) or named.has(path):
        return True
    if stat.S_ISLNK(new.mode):
        # The symlink may stand in for a directory whose files a tool runs.
        return may_hold_what_runs(path) or named.any_below(path)
    if is_git_configuration(path, read(new.head)):
        return True
    steps = _STEPS.get(path.rpartition(b"/")[2].lower())
    if steps is None:
        return False
    before = old.head if old and stat.S_ISREG(old.mode) else b""
    return new.unread or steps(read(before)) != steps(read(new.head))


def _json_scripts(text: bytes) -> object:
    """Return the commands that a package file gives its package manager; the text itself where unparsable."""
    if len(text) > _PARSED:
        return text
    try:
        parsed: object = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return text
    if not isinstance(parsed, dict):
        return text
    return {name: parsed[name] for name in _PACKAGE_KEYS if parsed.get(name)}


def _build_steps(text: bytes) -> object:
    """Return the build steps of a Python project file; the text itself where unparsable."""
    import tomllib

    if len(text) > _PARSED or any(line.count(b".") > _MOST_DOTS for line in text.split(b"\n")):
        return text
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
    checkers = {name: tools.get(name) for name in _CHECKERS} if isinstance(tools, dict) else {}
    return parsed.get("build-system"), builds, checkers


_STEPS: dict[bytes, Callable[[bytes], object]] = {
    b"package.json": _json_scripts,
    b"composer.json": _json_scripts,
    b"pyproject.toml": _build_steps,
}


def _tells_secret(path: bytes, old: Look | None, new: Look) -> bool:
    if old is None and is_secret_name(path):
        return True
    found = secrets(read(new.head))
    return bool(found and found - (secrets(read(old.head)) if old else set()))


# The most bytes read: of one file, and of all files of one command.
MOST_OF_A_FILE = 4 << 20
MOST_OF_ALL = 64 << 20

_NAMES = re.compile(
    rb"(?:\A|/)(?:id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.pgpass|\.git-credentials|\.aws/credentials)\Z"
)
# A word that a quick search finds, and the pattern to try where the word occurs.
_TOKENS = [
    (b"PRIVATE KEY", re.compile(rb"-----BEGIN (?:[A-Z]{1,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----")),
    (b"AKIA", re.compile(rb"\bAKIA[0-9A-Z]{16}\b")),
    (b"ASIA", re.compile(rb"\bASIA[0-9A-Z]{16}\b")),
    (b"AIza", re.compile(rb"\bAIza[0-9A-Za-z_-]{35}")),
    *((b"gh%c_" % kind, re.compile(rb"\bgh%c_[0-9A-Za-z]{36}" % kind)) for kind in b"pousr"),
    (b"github_pat_", re.compile(rb"\bgithub_pat_[0-9A-Za-z_]{40}")),
    (b"glpat-", re.compile(rb"\bglpat-[0-9A-Za-z_-]{20}")),
    (b"xox", re.compile(rb"\bxox[abeoprs]-[0-9A-Za-z-]{20}")),
    (
        b"hooks.slack.com/",
        re.compile(rb"hooks\.slack\.com/services/T[0-9A-Z]{1,20}/B[0-9A-Z]{1,20}/[0-9A-Za-z]{20}"),
    ),
    (b"sk_live_", re.compile(rb"\bsk_live_[0-9A-Za-z]{24}")),
    (b"npm_", re.compile(rb"\bnpm_[0-9A-Za-z]{36}")),
    (b"pypi-", re.compile(rb"\bpypi-AgEI[0-9A-Za-z_-]{50}")),
]
# One match takes a whole run of letters, so a run is read once however often `sk-` occurs in it.
_SK = re.compile(rb"\bsk-([0-9A-Za-z_-]{32,})")
_SK_RANDOM = 32
_DIGIT = re.compile(rb"[0-9]")
# No value holds `:` or `=` before its end, so two attempts never read the same bytes.
_VALUE = re.compile(rb"[:=][ \t]{0,4}[\"']?([0-9A-Za-z+/_-]{20,200}+={0,2}+)(?![0-9A-Za-z+/_=.(\[-])")
_TELLING = re.compile(
    rb"(?:password|passwd|secret|token|api[_-]?key|access_?key)[a-z0-9_-]{0,20}[\"']?[ \t]{0,4}\Z",
    re.IGNORECASE,
)
# A quick search: each telling name contains one of these words.
_TELLING_WORDS = (b"passw", b"secret", b"token", b"key")
_NAME_LENGTH = 48
_PLACEHOLDER = re.compile(rb"example|placeholder|change|your|dummy|xxxx|0000|1234567", re.IGNORECASE)
_RANDOM_BITS = 3.7


class Budget:
    """The bytes that the scans of one command may still read."""

    def __init__(self, all_files: int = MOST_OF_ALL) -> None:
        self._left = all_files

    def take(self, size: int) -> int:
        """Return how many bytes of a file of *size* may be read, and count them as read."""
        granted = min(size, MOST_OF_A_FILE, self._left)
        self._left -= granted
        return granted


def is_secret_name(path: bytes) -> bool:
    """Whether a file at *path* is a place for secrets, whatever its content."""
    return _NAMES.search(path) is not None


def secrets(text: bytes) -> set[bytes]:
    """Return the parts of *text* that look like secrets."""
    found: set[bytes] = set()
    for word, pattern in _TOKENS:
        if word in text:
            found.update(pattern.findall(text))
    if b"sk-" in text:
        # A key has a digit, and not only near its end: words joined by hyphens are no key.
        found.update(run for run in _SK.findall(text) if _DIGIT.search(run, 0, len(run) - _SK_RANDOM + 1))
    lowered = text.lower()
    if any(word in lowered for word in _TELLING_WORDS):
        found.update(_values(text))
    return found


def _values(text: bytes) -> set[bytes]:
    """Return the random-looking values behind a telling name."""
    return {
        value[1]
        for value in _VALUE.finditer(text)
        if _looks_random(value[1])
        and _TELLING.search(text[max(0, value.start() - _NAME_LENGTH) : value.start()])
    }


def _looks_random(value: bytes) -> bool:
    """Whether *value* mixes letters and digits as no word and no placeholder does."""
    if _PLACEHOLDER.search(value) or value.isalpha() or not _DIGIT.search(value):
        return False
    counts = Counter(value).values()
    bits = -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
    return bits >= _RANDOM_BITS
