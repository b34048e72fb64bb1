"""How is a plan shown to a person, and described to a program?

A letter for what happens to each path, as `git status` has them, and what to look at twice behind it; then
the counts in one sentence. Directories that their content implies are left out for a person only.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.flags import Flag
from sandboxfs.changes.patch import Kind, quote_name
from sandboxfs.changes.plan import Plan
from sandboxfs.changes.summary import without_implied

# So many paths are shown before a question; --dry-run shows all.
MOST = 60

_LETTERS = {
    Kind.ADDED: "A",
    Kind.DELETED: "D",
    Kind.MODIFIED: "M",
    Kind.RENAMED: "R",
    Kind.MODE: "M",
    Kind.TYPE: "T",
}
_ORDER = (Kind.ADDED, Kind.MODIFIED, Kind.MODE, Kind.TYPE, Kind.RENAMED, Kind.DELETED)
_WORDS = {Kind.MODE: "with another mode", Kind.TYPE: "of another type"}

Flags = Mapping[bytes, Sequence[Flag]]


def name_of(path: bytes) -> str:
    """Show a path on one line, whatever it is made of."""
    return quote_name(path or b".").decode()


def lines(findings: Iterable[Finding], flags: Flags, most: int | None = None) -> list[str]:
    """A line for each of *findings*; with *most*, no more than so many and how many more there are."""
    shown = without_implied(list(findings))
    found = [_line(finding, flags) for finding in shown[:most]]
    if most is not None and len(shown) > most:
        found.append(f"  … and {len(shown) - most:,} more; --dry-run shows all")
    return found


def _line(finding: Finding, flags: Flags) -> str:
    slash = "/" if finding.is_dir else ""
    name = name_of(finding.path) + slash
    if finding.kind is Kind.RENAMED and finding.old_path is not None:
        name = f"{name_of(finding.old_path)}{slash} -> {name}"
    raised = flags.get(finding.path, ())
    marks = f"  [{', '.join(flag.value for flag in raised)}]" if raised else ""
    return f"  {_LETTERS[finding.kind]} {name}{marks}"


def counted(findings: Iterable[Finding]) -> str:
    """Say how many changes there are, and of which kinds."""
    counts = Counter(finding.kind for finding in without_implied(list(findings)))
    total = sum(counts.values())
    parts = [f"{counts[kind]:,} {_WORDS.get(kind, kind.value)}" for kind in _ORDER if counts[kind]]
    return f"{changes(total)}: {', '.join(parts)}" if parts else changes(total)


def changes(number: int) -> str:
    return f"{number:,} change{'' if number == 1 else 's'}"


def described(finding: Finding, flags: Flags) -> dict[str, object]:
    """Describe one change for a program."""
    return {
        "path": os.fsdecode(finding.path),
        "kind": finding.kind.value,
        "old_path": None if finding.old_path is None else os.fsdecode(finding.old_path),
        "directory": finding.is_dir,
        "conflict": finding.conflict,
        "flags": [flag.value for flag in flags.get(finding.path, ())],
    }


def plan_json(plan: Plan) -> dict[str, object]:
    """Describe what a commit does, or would do."""
    whole = {item.finding.path: item.whole for item in plan.items}
    return {
        "changes": [
            described(finding, plan.flags) | {"whole": whole[finding.path]} for finding in plan.findings
        ],
        "counts": counts_json(plan.findings),
        "dropped": paths_json(plan.drops),
        "trimmed": paths_json(trim.finding for trim in plan.trims),
        "marked": paths_json(item.finding for item in plan.marks),
        "left": paths_json(plan.left),
        "conflicts": [
            {"path": os.fsdecode(finding.path), "why": finding.conflict} for finding in plan.conflicts
        ],
        "refused": [{"path": os.fsdecode(finding.path), "why": why} for finding, why in plan.refusals],
        "git_left_out": plan.git,
    }


def counts_json(findings: Iterable[Finding]) -> dict[str, int]:
    counts = Counter(finding.kind for finding in findings)
    return {kind.value: counts[kind] for kind in _ORDER if counts[kind]}


def paths_json(findings: Iterable[Finding]) -> list[str]:
    return [os.fsdecode(finding.path) for finding in findings]


def plan_lines(plan: Plan, most: int | None = None) -> list[str]:
    """What a commit does, or would do, for a person."""
    found = lines(plan.findings, plan.flags, most)
    marked = {item.finding.path for item in plan.marks}
    stuck = [finding for finding in plan.conflicts if finding.path not in marked]
    sections: list[tuple[Iterable[Finding], str]] = [
        (plan.drops, "dropped, the workspace's side stays:"),
        ((trim.finding for trim in plan.trims), "dropped in part, the rest stays in the sandbox:"),
        ((item.finding for item in plan.marks), "not committed, conflict markers go into the view:"),
        (stuck, "not committed, in conflict with the workspace:"),
        (plan.left, "left in the sandbox, because the workspace changed meanwhile:"),
    ]
    for findings, title in sections:
        some = lines(findings, {}, most)
        found += [title, *some] if some else []
    if plan.git:
        found.append(f"left out: {changes(plan.git)} in .git; --include-git takes them")
    return found


def summary(plan: Plan) -> str:
    """Sum a commit up in one sentence."""
    looks = len(plan.flags)
    twice = f"; look twice at {looks:,} of them" if looks else ""
    return counted(plan.findings) + twice


def told(sentences: Iterable[str], say: Callable[[str], None]) -> None:
    for sentence in sentences:
        say(sentence)
