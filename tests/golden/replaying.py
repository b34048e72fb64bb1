"""Commands given to a state that was put up again, and what is to be remembered of their answers.

A script is a list of steps. Each step has the words of a command and what came of it: the exit status, what
it wrote on stdout, and what is new in the workspace afterwards. Values that no two runs share are left out,
and so are the rules that each version brings along: see `normal`.
"""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.golden.relocation import Json, walk
from tests.golden.scenes import do_little
from tests.support.drivers import HostTree

# Times, numbers that the machine gives, what whoever looks at a view asks of it, and how much room a
# filesystem takes for something.
_VOLATILE: Final = frozenset(
    {"created", "last_used", "exported", "revision", "bytes", "upper_bytes", "pid", "uptime", "time", "prev"}
    | {"crc", "policy", "head", "baseline_bytes", "uid", "command", "hits", "reads"}
)
_PATIENCE: Final = 180


def normal(found: object, root: Path, key: str = "") -> object:
    """*found* as it is in every run: `@root@` for the place, the kind of value in place of what differs."""
    match found:
        case dict():
            return {one: normal(value, root, one) for one, value in found.items()}
        case list():
            # Sandboxes come in the order in which they were used, which may have been the same moment.
            ordered = sorted(found, key=_name) if key == "sandboxes" else found
            return [normal(value, root) for value in ordered if not _is_built_in(value)]
        case str() | int() | float() if key in _VOLATILE:
            return f"@{type(found).__name__}@"
        case str() if key == "version":
            return "@version@"
        case str():
            return found.replace(str(root), "@root@")
        case _:
            return found


def _is_built_in(found: object) -> bool:
    """Whether it is a rule that each version brings along."""
    return isinstance(found, dict) and found.get("kind") == "built-in"


def _name(found: object) -> str:
    return str(found.get("name")) if isinstance(found, dict) else ""


def run(
    words: Sequence[str], root: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run the command line on the state at *root*, outside of every workspace."""
    return subprocess.run(
        [sys.executable, "-m", "sandboxfs", *(word.replace("@root@", str(root)) for word in words)],
        stdin=subprocess.DEVNULL,
        cwd=root,
        env={**environment, "SANDBOXFS_STATE_DIR": str(root / "state"), "HOME": str(root / "home")},
        capture_output=True,
        timeout=_PATIENCE,
        check=False,
    )


def answer(words: Sequence[str], root: Path, environment: Mapping[str, str]) -> Json:
    """Run a command; what is to be remembered of it."""
    done = run(words, root, environment)
    step: Json = {"words": list(words), "status": done.returncode}
    text = done.stdout.decode("utf-8", "surrogateescape")
    if "run" in words[:1]:
        # Standard output is the program's own.
        text = (root / "run.json").read_text()
    if "--json" in words and text:
        step["documents"] = [normal(one, root) for one in documents(text)]
    elif text:
        step["text"] = text.replace(str(root), "@root@").splitlines()
    if done.returncode not in (0, 1, 5):
        said = done.stderr.decode(errors="replace").replace(str(root), "@root@")
        step["said"] = re.sub(r"(process |\"pid\": )\d+", r"\1@pid@", said).splitlines()
    return step


def remembered(script: Sequence[Sequence[str]], root: Path, environment: Mapping[str, str]) -> list[Json]:
    """Run the commands of a script one after the other; what is to be remembered of them."""
    return _shortened(_replay(script, root, environment))


def _replay(script: Sequence[Sequence[str]], root: Path, environment: Mapping[str, str]) -> list[Json]:
    """Run one command after the other; each step says what is new in the workspace.

    `@do NAME` is no command, but something that a program does in the view: see `DEEDS`.
    """
    steps, before = [], snapshot(root / "workspace")
    for words in script:
        if words[0] == "@do":
            DEEDS[words[1]](HostTree(root / "view"))
            step: Json = {"words": list(words)}
        else:
            step = answer(words, root, environment)
        after = snapshot(root / "workspace")
        if after != before:
            changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
            step["workspace"] = {path: after.get(path) for path in changed}
        steps.append(step)
        before = after
    return steps


def _disobey(view: HostTree) -> None:
    with suppress(OSError):
        view.write("secret", b"x", 0)
    with suppress(OSError):
        view.read("hidden")


DEEDS: Final[dict[str, Callable[[HostTree], None]]] = {"change": do_little, "disobey": _disobey}


def _shortened(steps: Sequence[Json]) -> list[Json]:
    """*steps* with the number of the step that said the same before, in place of what it said."""
    short: list[Json] = []
    for number, step in enumerate(steps):
        said = step.get("documents")
        first = next((at for at, one in enumerate(steps) if said and one.get("documents") == said), number)
        short.append(step if first == number else step | {"documents": first})
    return short


def documents(text: str) -> list[object]:
    """The documents that a command wrote: one, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def snapshot(workspace: Path) -> dict[str, str]:
    """What a directory has, a line for each path."""
    return {path: _told(workspace / path, status) for path, status in walk(workspace)}


def _told(place: Path, status: os.stat_result) -> str:
    mode = f"{stat.S_IMODE(status.st_mode):o}"
    if stat.S_ISLNK(status.st_mode):
        return f"symlink {os.readlink(place)}"
    if stat.S_ISREG(status.st_mode):
        names = os.listxattr(place, follow_symlinks=False)
        xattrs = {name: os.getxattr(place, name) for name in sorted(names) if name.startswith("user.")}
        more = f" {xattrs}" if xattrs else ""
        content = place.read_bytes().decode("utf-8", "surrogateescape")
        return f"file {mode} {status.st_nlink} {status.st_mtime_ns}{more} {content}"
    return f"{stat.filemode(status.st_mode)[0]} {mode}"
