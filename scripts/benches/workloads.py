"""What is measured? Scenes of steps; each scene is played in a new mount of one tree.

A step fills a row. Its proof is what has to be the same in every competitor, or its times do not count.
In a scene the first of a pair is *cold*: the mount has just been made and the kernel knows nothing of it.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.benches.measuring import SANDBOXFS
from scripts.benches.names import (
    LATENCIES,
    LATENCY,
    MEGABYTES,
    MEMORY,
    MICROSECONDS,
    MOUNT_READY,
    OWN,
    SECONDS,
    SINGLE,
    WORKLOAD,
)
from scripts.benches.supplies import described_application
from scripts.benches.timing import Sample, Stage, everything, have_memory, resident_megabytes
from scripts.benches.trees import Sizes, edited_sources

INSIDE = Path(__file__).with_name("inside.py")

# With the bytecode where the modules are, wherever that of everything else goes.
_PYTHON = (sys.executable, "-X", "pycache_prefix=")

Act = Callable[[Stage], Sample]
Proof = Callable[[Stage, bool], str]


@dataclass(frozen=True)
class Step:
    """Something to time. *proof* gets whether it should look at all bytes."""

    row: str
    act: Act
    proof: Proof
    kind: str = WORKLOAD
    unit: str = SECONDS
    after: str | None = None  # a row of the same scene that must have been filled before


@dataclass(frozen=True)
class Scene:
    tree: str
    steps: tuple[Step, ...]
    only: str | None = None  # the one competitor that it is about
    times: int = 1  # how often a round has it


def scenes(sizes: Sizes, synced: int) -> list[Scene]:
    """Every scene; *synced* is how many transactions the disk has time for."""
    return [
        _mounting(),
        *_reading(),
        _checkout(),
        _writing(),
        _editing(sizes),
        _tools(),
        _large(sizes),
        _bulk(sizes, synced),
        _operations(sizes),
        _walk(),
        _command_line(),
    ]


def _mounting() -> Scene:
    def proof(stage: Stage, _: bool) -> str:
        return " ".join(sorted(path.name for path in stage.view.path.iterdir()))

    return Scene("project", (Step(MOUNT_READY, lambda stage: Sample(stage.view.ready_after), proof, SINGLE),))


def _reading() -> Iterator[Scene]:
    commands = {
        "find": ("find", ".", "-name", ".git", "-prune", "-o", "-type", "f", "-printf", "%P %s %m %T@\\n"),
        "git status": ("git", "status", "--porcelain", "--untracked-files=all"),
        "grep -r": ("grep", "-r", "-c", "--exclude-dir=.git", "needle", "src", "assets", "lib"),
    }
    for name, words in commands.items():
        cold = _command(f"{name}, cold", words)
        yield Scene("project", (cold, _command(f"{name}, warm", words, after=cold.row)))


def _checkout() -> Scene:
    def proof(stage: Stage, data: bool) -> str:
        return everything(stage.view.path, data, leave=lambda name: name == ".git")

    checkout = Step("git checkout", _act(("git", "checkout", "--quiet", "-f", "other")), proof)
    return Scene("project", (checkout,))


def _writing() -> Scene:
    def clone(stage: Stage) -> Sample:
        return stage.run("git", "clone", "--quiet", stage.supplies / "repository.git", "clone")

    def untar(stage: Stage) -> Sample:
        return stage.run("tar", "-xf", stage.supplies / "tree.tar")

    return Scene(
        "project",
        (
            Step("git clone", clone, _tree("clone", leave=".git")),
            Step("untar", untar, _tree("tree")),
            Step("cp -r", _act(("cp", "-r", "tree", "copy")), _tree("copy"), after="untar"),
        ),
    )


def _editing(sizes: Sizes) -> Scene:
    edited = ("sed", "-i", "s/value/worth/", *edited_sources(sizes))
    return Scene(
        "project",
        (
            Step("sed -i", _act(edited), _tree("src")),
            Step("rename a directory", _act(("mv", "assets", "moved")), _tree("moved")),
        ),
    )


def _tools() -> Scene:
    def pip(stage: Stage) -> Sample:
        wheels = stage.supplies / "wheels"
        names = [path.name.partition("-")[0] for path in sorted(wheels.iterdir())]
        quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location", "--no-cache-dir")
        where = ("--no-index", "--find-links", str(wheels), "--prefix", str(stage.view.path / "installed"))
        return stage.run(*_PYTHON, "-m", "pip", "install", *quiet, *where, *names)

    def npm(stage: Stage) -> Sample:
        application = stage.view.path / "application"
        application.mkdir()
        (application / "package.json").write_text(described_application(stage.supplies / "packages"))
        return stage.run(*NPM, within="application")

    compiled = (*_PYTHON, "-m", "compileall", "-q", "lib")
    return Scene(
        "project",
        (
            Step("python -m compileall", _act(compiled), _tree("lib")),
            Step("make -j2", _act(("make", "-s", "-j2", "-C", "c")), _tree("c")),
            Step("pip install", pip, _tree("installed")),
            Step("npm install", npm, _tree("application/node_modules")),
            Step(
                "rm -rf node_modules",
                _act(("rm", "-rf", "application/node_modules")),
                _tree("application", leave="package-lock.json"),
                after="npm install",
            ),
        ),
    )


NPM = ("npm", "install", "--offline", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


_READ = ("dd", "if=large", "of=/dev/null", "bs=1M", "status=none")


def _large(sizes: Sizes) -> Scene:
    # What the first read gave is looked at after the second: looking would fill the caches for it.
    steps = (
        Step("sequential read", _with_memory(sizes, _act(_READ)), _said),
        Step("sequential re-read", _act(_READ), _file("large"), after="sequential read"),
    )
    # How quickly it is read again depends on which pages the kernel happened to put it in.
    return Scene("bulk", steps, times=3)


def _bulk(sizes: Sizes, synced: int) -> Scene:
    write = ("dd", "if=/dev/zero", "of=new", "bs=1M", f"count={sizes.megabytes}", "status=none")
    return Scene(
        "bulk",
        (
            Step("sequential write", _with_memory(sizes, _act(write)), _file("new", remove=True)),
            _inside("random read", "read", sizes.random_blocks, before=_READ),
            _inside("random write", "write", sizes.random_blocks, proof=_file("written")),
            Step("append to a huge file", _act(("sh", "-c", "printf x >>huge")), _ends("huge")),
            _inside("sqlite, 5,000 transactions", "sqlite", sizes.transactions, "wal"),
            _inside("sqlite, synced", "sqlite", synced, "default"),
        ),
    )


def _operations(sizes: Sizes) -> Scene:
    first = LATENCIES[0]
    steps = [Step(first, _latencies(sizes.operations), _said, LATENCY, MICROSECONDS)]
    steps += [
        Step(row, _remembered(row), lambda stage, _: "", LATENCY, MICROSECONDS, after=first)
        for row in LATENCIES[1:]
    ]
    return Scene("project", (*steps, _inside("four processes at once", "parallel", sizes.operations)))


def _walk() -> Scene:
    def walk(stage: Stage) -> Sample:
        stage.run("find", ".", "-type", "f", "-size", "+0")
        held = 0.0 if stage.view.daemon is None else resident_megabytes(stage.view.daemon)
        return Sample(held)

    return Scene("many", (Step(MEMORY, walk, _said, SINGLE, MEGABYTES),))


def _command_line() -> Scene:
    version = Step("sandboxfs --version", _act((*SANDBOXFS, "--version")), _said, SINGLE)
    diff = Step("sandboxfs diff, no change", _act((*SANDBOXFS, "diff")), _said, SINGLE)
    return Scene("project", (version, diff), only=OWN)


def _command(row: str, words: tuple[str, ...], after: str | None = None) -> Step:
    return Step(row, _act(words), _said, after=after)


def _inside(row: str, *words: str | int, proof: Proof | None = None, before: tuple[str, ...] = ()) -> Step:
    command = (sys.executable, "-I", str(INSIDE), *(str(word) for word in words))
    return Step(row, _act(command, before), proof or _said)


def _act(words: tuple[str, ...], before: tuple[str, ...] = ()) -> Act:
    """Run a command; *before* is one that does not count."""

    def act(stage: Stage) -> Sample:
        if before:
            stage.run(*before)
        return stage.run(*words)

    return act


def _with_memory(sizes: Sizes, act: Act) -> Act:
    """The same, with memory at hand for a large file and a little more."""

    def ready(stage: Stage) -> Sample:
        have_memory(sizes.megabytes * 5 // 4)
        return act(stage)

    return ready


def _said(stage: Stage, _: bool) -> str:
    return stage.lines()


def _tree(name: str, leave: str = "") -> Proof:
    return lambda stage, data: everything(stage.view.path / name, data, leave=lambda found: found == leave)


def _file(name: str, *, remove: bool = False) -> Proof:
    """The size, and the bytes when they are wanted.

    With *remove* the file goes then, lest the disk be busy with it while the next step is timed.
    """

    def proof(stage: Stage, data: bool) -> str:
        path = stage.view.path / name
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest() if data else ""
        size = path.stat().st_size
        if remove:
            path.unlink()
        return f"{size} {digest}"

    return proof


def _ends(name: str) -> Proof:
    """The size, and how a file begins and ends."""

    def proof(stage: Stage, _: bool) -> str:
        with (stage.view.path / name).open("rb") as file:
            first = file.read(64)
            size = file.seek(-64, os.SEEK_END) + 64
            return f"{size} {first!r} {file.read()!r}"

    return proof


def _latencies(count: int) -> Act:
    """All of them in one process: the first row's step runs it, the others find what it left."""

    def act(stage: Stage) -> Sample:
        stage.run(sys.executable, "-I", str(INSIDE), "latencies", str(count))
        report = json.loads(stage.said[0])
        stage.found = {row: float(value) for row, value in report["microseconds"].items()}
        stage.said = [json.dumps(report["proof"]).encode()]
        return _microseconds(stage, LATENCIES[0])

    return act


def _remembered(row: str) -> Act:
    return lambda stage: _microseconds(stage, row)


def _microseconds(stage: Stage, row: str) -> Sample:
    return Sample(stage.found[row])
