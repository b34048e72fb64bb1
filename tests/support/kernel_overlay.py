"""What does kernel overlayfs make of the same layers?

It is mounted in a user and mount namespace of its own, where an ordinary user may do that, by running this
module there as a program: it mounts, changes the merged tree if asked to, and prints what it sees as JSON.
"""

import base64
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.support import conditions
from tests.support.mounted import PROJECT
from tests.support.tree import Snapshot, State, capture


def require_kernel_overlay(place: Path) -> None:
    """Skip the test where the kernel does not let this user mount overlayfs on the filesystem of *place*."""
    layers = [place / name for name in ("probe-lower", "probe-upper", "probe-work", "probe-merged")]
    for layer in layers:
        layer.mkdir()
    done = _apart(layers, "")
    if done.returncode:
        conditions.missing(f"kernel overlayfs cannot be mounted: {done.stderr.strip().splitlines()[-1]}")


def seen_by_the_kernel(lower: Path, upper: Path, scratch: Path, script: str = "") -> Snapshot:
    """What overlayfs shows for the layers, after the shell *script* ran in the merged tree."""
    scratch.mkdir()
    work, merged = scratch / "work", scratch / "merged"
    work.mkdir()
    merged.mkdir()
    done = _apart([lower, upper, work, merged], script)
    assert done.returncode == 0, done.stderr
    return {base64.b64decode(path): _state(fields) for path, fields in json.loads(done.stdout).items()}


def _apart(layers: list[Path], script: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "tests.support.kernel_overlay"]
    return subprocess.run(
        ["unshare", "-Urm", *program, *map(str, layers), script],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _state(fields: dict[str, object]) -> State:
    values = dict(fields)
    xattrs = values["xattrs"]
    assert isinstance(xattrs, list)
    values["xattrs"] = tuple((name, base64.b64decode(value)) for name, value in xattrs)
    values["target"] = base64.b64decode(str(values["target"]))
    return State(**values)  # type: ignore[arg-type]


def _printable(state: State) -> dict[str, object]:
    values: dict[str, object] = asdict(state)
    values["xattrs"] = [(name, base64.b64encode(value).decode()) for name, value in state.xattrs]
    values["target"] = base64.b64encode(state.target).decode()
    return values


def main() -> None:
    lower, upper, work, merged, script = sys.argv[1:]
    options = f"userxattr,lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    os.umask(0o022)
    subprocess.run(["sh", "-e", "-c", script], cwd=merged, check=True)
    found = {base64.b64encode(p).decode(): _printable(s) for p, s in capture(Path(merged)).items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
