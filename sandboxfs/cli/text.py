"""Texts about changes and plans: lists, counts, flags and conflicts, as a person reads them.

A letter for what happens to each path, as `git status` has them, and what to look at twice behind it; then
the counts in one sentence. Directories that their content implies are left out for a person only.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandboxfs.cli import output
from sandboxfs.errors import CommitConflict
from sandboxfs.paths import counted, quoted
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.compare import differ_in_attributes
from sandboxfs.review.flags import Flag
from sandboxfs.review.patch import quote_name
from sandboxfs.review.scope import HeldChange, Reason
from sandboxfs.review.summary import FoldedDirectory, without_implied
from sandboxfs.service.review import KINDS

if TYPE_CHECKING:
    from sandboxfs.service.commit import CommitPreview

# So many of a kind are named.
_NAMED = 20
_KINDS = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}


def shown(path: bytes) -> str:
    return quoted(os.fsdecode(path) or ".")


def type_word(side: Version | None) -> str:
    """Name what is no ordinary file."""
    return "file" if side is None else _KINDS.get(stat.S_IFMT(side.mode), "file")


def attribute_words(kind: ChangeKind, old: Version | None, new: Version | None) -> list[str]:
    """Say what changed around the content: mode, owner, extended attributes."""
    if old is None or new is None or old is new or stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        return []
    words = []
    if old.mode != new.mode:
        words.append(f"mode {stat.S_IMODE(old.mode):03o} -> {stat.S_IMODE(new.mode):03o}")
    if (old.uid, old.gid) != (new.uid, new.gid):
        words.append(f"owner {old.uid}:{old.gid} -> {new.uid}:{new.gid}")
    # What changed nothing else did so when it was looked at, whatever the host has by now.
    if differ_in_attributes(old, new) or (kind is ChangeKind.MODE and not words):
        words.append("extended attributes")
    return words


def tell(lines: list[str]) -> None:
    """Write *lines*, or the first of them and how many more there are."""
    for line in lines[:_NAMED]:
        output.note(line)
    if len(lines) > _NAMED:
        output.note(f"note: … and {len(lines) - _NAMED:,} more; --json has all")


def tell_conflicts(findings: Iterable[PathChange]) -> None:
    tell([f"conflict: {shown(found.path)}: {found.conflict}" for found in findings if found.conflict])


def paths_of(findings: Iterable[PathChange]) -> list[str]:
    return [shown(finding.path) for finding in findings]


def left_out(folded: Sequence[FoldedDirectory]) -> list[str]:
    """Say how much a commit leaves out, where, and how to have it: a sentence for each reason."""
    sentences = []
    for reason, word, option in (
        (Reason.IGNORED, "ignored change", "--ignored"),
        (Reason.GIT, "change", "--include-git"),
    ):
        lines = [line for line in folded if line.reason == reason]
        if not lines:
            continue
        where = ", ".join(shown(line.directory) for line in lines[:3]) + (", …" if len(lines) > 3 else "")
        flags = sorted({flag.value for line in lines for flag in line.flags})
        marked = f" (flags: {', '.join(flags)})" if flags else ""
        number = sum(line.changes for line in lines)
        them = "it" if number == 1 else "them"
        sentences.append(
            f"left out of commit: {counted(number, word)} in {where}{marked}; {option} takes {them}"
        )
    return sentences


def tell_folded(folded: list[FoldedDirectory]) -> None:
    """Say what neither `diff` shows nor `commit` takes."""
    for sentence in left_out(folded):
        output.note(f"note: {sentence}")


def last_line(unshown: Sequence[str], where: str) -> bytes:
    """What `commit` applies and the result does not show, as the result's last line; nothing without any.

    `git apply` and `patch` pass over a line that starts like this.
    """
    if not unshown:
        return b""
    count = counted(len(unshown), "change")
    some = ", ".join(unshown[:3]) + (", …" if len(unshown) > 3 else "")
    return f"# sandboxfs: commit applies {count} not in {where}: {some}\n".encode()


# So many paths are shown before a question; --dry-run shows all.
MOST = 60

_LETTERS = {
    ChangeKind.ADDED: "A",
    ChangeKind.DELETED: "D",
    ChangeKind.MODIFIED: "M",
    ChangeKind.RENAMED: "R",
    ChangeKind.MODE: "M",
    ChangeKind.TYPE: "T",
}
_WORDS = {ChangeKind.MODE: "with another mode", ChangeKind.TYPE: "of another type"}

Flags = Mapping[bytes, Sequence[Flag]]


def name_of(path: bytes) -> str:
    """Show a path on one line, whatever it is made of."""
    return quote_name(path or b".").decode()


def lines(findings: Iterable[PathChange], flags: Flags, most: int | None = None) -> list[str]:
    """A line for each of *findings*; with *most*, for so many, and for every marked one of the rest."""
    shown = without_implied(list(findings))
    found = [_line(finding, flags) for finding in shown[:most]]
    rest = [] if most is None else shown[most:]
    marked = [_line(finding, flags) for finding in rest if flags.get(finding.path)]
    if rest:
        among = ", with these marks among them:" if marked else ""
        found.append(f"  … and {len(rest):,} more; --dry-run shows all{among}")
    return found + marked


def _line(finding: PathChange, flags: Flags) -> str:
    slash = "/" if finding.is_dir else ""
    name = name_of(finding.path) + slash
    if finding.kind is ChangeKind.RENAMED and finding.old_path is not None:
        name = f"{name_of(finding.old_path)}{slash} -> {name}"
    marks = [
        *attribute_words(finding.kind, finding.old, finding.new),
        *(flag.value for flag in flags.get(finding.path, ())),
    ]
    return f"  {_LETTERS[finding.kind]} {name}" + (f"  [{', '.join(marks)}]" if marks else "")


def counted_changes(
    findings: Iterable[PathChange], of: output.NamedSandbox | None = None, *, to: bool = False
) -> str:
    """Say how many changes there are, and of which kinds; with *of*, also whose and of which workspace.

    *to* is for changes that go there.
    """
    counts = Counter(finding.kind for finding in without_implied(list(findings)))
    total = sum(counts.values())
    parts = [f"{counts[kind]:,} {_WORDS.get(kind, kind.value)}" for kind in KINDS if counts[kind]]
    where = "to" if to else "for"
    whose = "" if of is None else f" of '{of.name}' {where} {quoted(of.workspace)}"
    return f"{changes(total)}{whose}: {', '.join(parts)}" if parts else f"{changes(total)}{whose}"


def changes(number: int) -> str:
    return counted(number, "change")


def plan_lines(plan: "CommitPreview", most: int | None = None) -> list[str]:
    """What a commit does, or would do, for a person."""
    return lines(plan.changes, plan.flags, most) + besides(plan, most)


def besides(plan: "CommitPreview", most: int | None = None) -> list[str]:
    """What a commit does, or would do, besides applying changes."""
    marked = {finding.path for finding in plan.marked}
    stuck = [finding for finding in plan.conflicts if finding.path not in marked]
    sections: list[tuple[Iterable[PathChange], str]] = [
        (plan.dropped, "dropped, the workspace's side stays:"),
        (plan.trimmed, "dropped in part, the rest stays in the sandbox:"),
        (plan.marked, "not committed, conflict markers go into the view:"),
        (stuck, "not committed, in conflict with the workspace:"),
        (plan.left, "left in the sandbox, because the workspace changed meanwhile:"),
    ]
    found = []
    for findings, title in sections:
        some = lines(findings, {}, most)
        found += [title, *some] if some else []
    return found + held_lines(plan.held, most) + left_out(plan.left_out)


def held_lines(held: Sequence[HeldChange], most: int | None = None) -> list[str]:
    """Name the changes that wait for a person."""
    if not held:
        return []
    shown = [f"  {name_of(one.change.path)}{'/' * one.change.is_dir}  [{one.why}]" for one in held[:most]]
    if most is not None and len(held) > most:
        shown.append(f"  … and {len(held) - most:,} more; --dry-run shows all")
    return ["not committed until approved, see 'sandboxfs approve':", *shown]


def tell_held(held: Sequence[HeldChange]) -> None:
    """Say which of the shown changes wait for a person."""
    tell([f"held: {shown(one.change.path)}: {one.why}" for one in held])


def summary(plan: "CommitPreview", of: output.NamedSandbox | None = None) -> str:
    """Sum a commit up in one sentence; with *of*, also whose it is and where it goes."""
    looks = len(plan.flags)
    twice = f"; look twice at {looks:,} of them" if looks else ""
    return counted_changes(plan.changes, of, to=True) + twice


@contextmanager
def conflicts_told() -> Iterator[None]:
    """Name every conflict of an error that is about several."""
    try:
        yield
    except CommitConflict as error:
        conflicts = error.details.get("conflicts")
        if isinstance(conflicts, list) and len(conflicts) > 1:
            for one in conflicts:
                output.note(f"conflict: {quoted(one['path'])}: {one['why']}")
        raise
