"""Requests of programs in a view: for a directory that is not there, about which a person decides.

For programs, not for those who decide: nothing here knows a sandbox or a daemon. The request is a line in the
view's own `.sandboxfs/request`, and the answer is a file that waits for it. Nothing but the standard library
is needed, because inside a run packages may be out of reach.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.errors import DaemonLost, SandboxBusy, UsageError
from sandboxfs.paths import quoted

VIEW_VARIABLE = "SANDBOXFS_VIEW"
_CONTROL = ".sandboxfs"
_ANSWER_LIMIT = 1 << 16
_UNDECIDED = ("waiting", "allowed")


@dataclass(frozen=True)
class RequestedDirectory:
    """What became of a request; *answer* is what the view says of it."""

    number: int
    state: str
    path: str
    mode: str
    reason: str | None
    place: Path
    answer: Mapping[str, object]

    @property
    def granted(self) -> bool:
        return self.state == "granted"

    @property
    def undecided(self) -> bool:
        return self.state in _UNDECIDED

    @classmethod
    def read(cls, text: bytes, control: Path) -> "RequestedDirectory":
        try:
            answer = json.loads(text)
            number, reason = int(answer["id"]), answer["reason"]
            return cls(
                number,
                str(answer["state"]),
                str(answer["path"]),
                str(answer["mode"]),
                None if reason is None else str(reason),
                control / "answers" / str(number),
                answer,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DaemonLost("what the view says about the request makes no sense") from error


def request_directory(
    path: str,
    mode: str,
    reason: str | None,
    directory: str | None,
    environment: Mapping[str, str],
    *,
    wait: bool,
) -> RequestedDirectory:
    """Ask for the directory at *path*, as it is called in *directory*; with *wait* return the decision."""
    control = _control(directory, environment)
    wanted = os.path.normpath(os.path.join(directory or "/", os.path.expanduser(path)))  # noqa: PTH111, PTH118
    asked = {"path": wanted, "mode": mode} | ({} if reason is None else {"reason": reason})
    try:
        channel = os.open(control / "request", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(channel, json.dumps(asked).encode() + b"\n")
            found = RequestedDirectory.read(os.read(channel, _ANSWER_LIMIT), control)
        finally:
            os.close(channel)
        if wait and found.undecided:
            found = RequestedDirectory.read(found.place.read_bytes(), control)
    except BlockingIOError as error:
        raise SandboxBusy("too many requests wait for a person") from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UsageError(
                f"{quoted(path)} cannot be asked for: the path, the mode or the reason makes no sense",
                hint="the mode is 'ro' or 'rw', and the reason is one line",
            ) from error
        raise UsageError(f"nothing can be asked for here: {control}: {error.strerror}") from error
    return found


def _control(directory: str | None, environment: Mapping[str, str]) -> Path:
    """Return the control directory of the view that the caller is in."""
    here = Path(directory or "/")
    known = environment.get(VIEW_VARIABLE)
    for top in (*([Path(known)] if known else []), here, *here.parents):
        if os.path.lexists(top / _CONTROL / "request"):
            return top / _CONTROL
    raise UsageError(
        "this is no view in which a directory could be asked for",
        hint="'sandboxfs request' is for programs in a run; 'sandboxfs allow DIR' is for persons outside",
    )
