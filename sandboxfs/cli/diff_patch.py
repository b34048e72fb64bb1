"""How is a review written as a patch? File by file, each read, written and forgotten before the next."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import IO

from sandboxfs.changes.contents import Contents, change_flags, load
from sandboxfs.changes.files import FileChange, file_changes
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.patch import differing, patch
from sandboxfs.changes.view import View
from sandboxfs.cli import output
from sandboxfs.cli.diff_notes import counted, shown, tell, tell_conflicts, tell_folded
from sandboxfs.cli.painting import Painter
from sandboxfs.cli.reviewing import Review, divided


@dataclass
class _Remarks:
    """What is told after the patch, when it is known."""

    flags: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # Paths of which the patch says something.
    said: set[bytes] = field(default_factory=set)

    def take(self, found: FileChange, contents: Contents, root: bytes) -> None:
        raised = change_flags(found, contents, root)
        if raised:
            self.flags.append(f"look at: {shown(found.path)}: {', '.join(flag.value for flag in raised)}")
        if contents.changing:
            self.problems.append(f"note: {shown(found.path)} is still changing")
        if contents.problem is not None:
            self.problems.append(f"note: {shown(found.path)}: {contents.problem}; the patch cannot carry it")


def write_patch(
    review: Review,
    painter: Painter,
    place: AbstractContextManager[IO[bytes]],
    context: int,
    *,
    binary: bool,
) -> None:
    """Write the patch to *place* and everything beside it to stderr."""
    findings, folded = divided(review)
    tell_conflicts(findings)
    remarks = _Remarks()
    with place as stream:
        for found in file_changes(review.survey, findings, renames=review.renames):
            if review.aside is not None and review.aside.group(found.path, is_dir=False) is not None:
                # It came along with a renamed directory.
                continue
            contents = load(found)
            data = (
                differing(contents.change)
                if contents.problem
                else patch(contents.change, context, binary=binary)
            )
            remarks.take(found, contents, review.root)
            if data:
                stream.write(painter.patch(data))
                if not remarks.said:
                    stream.flush()
                remarks.said.add(found.path)
    tell(remarks.flags)
    tell(remarks.problems)
    _tell_unsaid(review.survey.view, findings, remarks.said)
    tell_folded(folded)


def _tell_unsaid(view: View, findings: list[Finding], said: set[bytes]) -> None:
    """Name what a patch has no words for: empty directories, special files, owners and other permissions."""
    left = [finding for finding in findings if not _is_said(view, finding, said)]
    if left:
        some = ", ".join(shown(finding.path) for finding in left[:3]) + (", …" if len(left) > 3 else "")
        count = counted(len(left), "change")
        output.note(f"note: {count} that a patch cannot carry: {some}; see --name-status")


def _is_said(view: View, finding: Finding, said: set[bytes]) -> bool:
    if finding.is_dir and finding.old_path is not None:
        return any(True for _ in view.below(finding.path))
    # What the host made in a deleted directory is no change of the sandbox's.
    unseen = finding.old is None and finding.new is None
    return unseen or finding.path in said or finding.lower_path in said
