"""What does `diff` say on stderr, beside the result? Conflicts, what to look at twice, what is left out."""

import os
import stat
from collections.abc import Iterable

from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.summary import GIT, Folded
from sandboxfs.cli import output
from sandboxfs.paths import quoted

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


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def type_word(side: Side | None) -> str:
    """Name what is no ordinary file."""
    return "file" if side is None else _KINDS.get(stat.S_IFMT(side.mode), "file")


def tell(lines: list[str]) -> None:
    """Write *lines*, or the first of them and how many more there are."""
    for line in lines[:_NAMED]:
        output.note(line)
    if len(lines) > _NAMED:
        output.note(f"note: … and {len(lines) - _NAMED:,} more; --json has all")


def tell_conflicts(findings: Iterable[Finding]) -> None:
    tell([f"conflict: {shown(found.path)}: {found.conflict}" for found in findings if found.conflict])


def tell_folded(folded: list[Folded]) -> None:
    """Say what is not in the patch, and how to see it."""
    for reason, word in (("ignored", "ignored changes"), (GIT, "changes in .git")):
        lines = [line for line in folded if line.reason == reason]
        if lines:
            where = ", ".join(shown(line.directory) for line in lines[:3]) + (", …" if len(lines) > 3 else "")
            flags = sorted({flag.value for line in lines for flag in line.flags})
            marked = f" (flags: {', '.join(flags)})" if flags else ""
            count = sum(line.changes for line in lines)
            output.note(f"note: {count:,} {word} left out, in {where}{marked}; --ignored shows them")
