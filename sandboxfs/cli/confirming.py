"""May it be done? One question on a terminal, `--yes` for programs, and otherwise no."""

import sys

from sandboxfs.errors import UsageError


def check_can_ask(verb: str, *, yes: bool, as_json: bool) -> None:
    """Raise unless the person can be asked or need not be."""
    if not yes and (as_json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError(
            f"refusing to {verb} without being asked to by a person",
            hint=f"look with 'sandboxfs {verb} --dry-run', then use --yes",
        )


def confirmed(question: str) -> bool:
    """Ask *question* on the terminal; anything but yes is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")
