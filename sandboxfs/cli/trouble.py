"""How does a review that failed tell what happened, and what did not?

Somebody was faster (a conflict), the host refused (no space, no permission): in either case everything was
taken back, and that is said. Where that could not be done for everything, what is left is named.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.stager import CHANGING
from sandboxfs.changes.steps import Surprise
from sandboxfs.cli import output
from sandboxfs.errors import CommitConflict, SandboxError, UsageError
from sandboxfs.paths import quoted

UNCHANGED = "nothing was changed"
OTHERS = f"{UNCHANGED}; wait until it has been written, or name the other paths"


@contextmanager
def told(verb: str) -> Iterator[None]:
    """Turn what can go wrong while *verb* is carried out into errors for a person."""
    try:
        yield
    except Surprise as surprise:
        message = f"cannot {verb} {quoted(surprise.path)}: {surprise.why}"
        hint = OTHERS if surprise.why == CHANGING else UNCHANGED
        raise _with_notes(CommitConflict(message, hint=hint), surprise) from surprise
    except BrokenPipeError:
        raise
    except OSError as error:
        at = f" at {quoted(os.fsdecode(error.filename))}" if error.filename else ""
        raise _with_notes(
            UsageError(f"cannot {verb}: {error.strerror}{at}", hint=UNCHANGED), error
        ) from error


def _with_notes(error: SandboxError, cause: BaseException) -> SandboxError:
    left: Sequence[str] = getattr(cause, "__notes__", ())
    if left:
        error.hint = "; ".join(left)
        error.details["left"] = list(left)
    return error


def conflict_error(verb: str, conflicts: Iterable[tuple[bytes, str]], hint: str) -> CommitConflict:
    """Name every conflict, and make the error that ends the command."""
    found = list(conflicts)
    details = {"conflicts": [{"path": os.fsdecode(path), "why": why} for path, why in found]}
    if len(found) == 1:
        path, why = found[0]
        return CommitConflict(f"cannot {verb} {quoted(path)}: {why}", hint=hint, details=details)
    for path, why in found:
        output.note(f"conflict: {quoted(path)}: {why}")
    return CommitConflict(f"cannot {verb} {len(found):,} changes", hint=hint, details=details)


def why(finding: Finding) -> tuple[bytes, str]:
    return finding.path, finding.conflict or "cannot be applied"
