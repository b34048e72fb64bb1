"""What does review cost? `diff` and `commit`, each beside the plain tool that does the same bytes.

    diff     `sandboxfs diff --stat` of many changed small files, against `git diff --no-index --stat`
    commit   `sandboxfs commit` of the same files, against `cp -a` and an fsync of each
    sparse   ten changes in a large workspace: whole commands, in seconds
    text     one 20 MB text with 1,000 scattered edits: the whole command, in seconds

The sandbox is mounted all the while, as it is when people review. A commit is taken back by `undo` before the
next round, outside the measured time.
"""

import argparse
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benches.measuring import SANDBOXFS, call, clean_environment, note, ratio, seconds, summary

# What is asked of each row: a ratio to the plain tool, or seconds.
TARGETS = {
    "diff --stat, many files": 2.0,
    "commit, many files": 2.0,
    "diff, sparse": 0.5,
    "commit, sparse": 1.0,
    "diff, one large text": 3.0,
}
_EDIT = """
import os, sys
for folder, _, names in os.walk("."):
    for name in names:
        with open(os.path.join(folder, name), "r+b") as file:
            text = file.read().replace(b"line 7 ", b"line seven ")
            file.seek(0)
            file.write(text + b"appended\\n")
"""
_SYNC = "find . -type f -print0 | xargs -0 sync"


class Sandbox:
    """A mounted sandbox of one workspace."""

    def __init__(self, place: Path, workspace: Path) -> None:
        self.workspace = workspace
        self.view = place / "view"
        self._environment = clean_environment(place / "state")

    def call(self, *words: str) -> str:
        return call([*SANDBOXFS, *words], self._environment)

    def seconds(self, *words: str) -> float:
        return seconds([*SANDBOXFS, *words, "-s", "bench"], self._environment)


@contextmanager
def mounted(place: Path, workspace: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(place, workspace)
    sandbox.view.mkdir(parents=True, exist_ok=True)
    sandbox.call("mount", "--name", "bench", str(workspace), str(sandbox.view))
    try:
        yield sandbox
    finally:
        sandbox.call("unmount", "--wait", str(sandbox.view))
        sandbox.call("rm", "--force", "bench")


def bench_review(place: Path, options: argparse.Namespace) -> dict[str, object]:
    rows = [
        *many_files(place / "many", options.files, options.rounds),
        *sparse(place / "sparse", options.large, options.rounds),
        one_text(place / "text", options.rounds),
    ]
    return {"files": options.files, "large": options.large, "rounds": options.rounds, "rows": rows}


def many_files(place: Path, files: int, rounds: int) -> list[dict[str, object]]:
    workspace = place / "workspace"
    make_files(workspace, files, lines=30)
    plain = clean_environment()
    with mounted(place, workspace) as sandbox:
        note(f"changing {files} files")
        subprocess.run(["python3", "-c", _EDIT], cwd=sandbox.view, check=True)
        changed = place / "changed"
        shutil.copytree(sandbox.view, changed, symlinks=True)
        diffs: list[float] = []
        gits: list[float] = []
        commits: list[float] = []
        copies: list[float] = []
        git = ["git", "diff", "--no-index", "--stat", str(workspace), str(changed)]
        for number in range(rounds):
            note(f"many files, round {number + 1} of {rounds}")
            for measure in alternated(
                number,
                lambda: diffs.append(sandbox.seconds("diff", "--stat")),
                lambda: gits.append(seconds(git, plain, fine=(0, 1))),
            ):
                measure()
            for measure in alternated(
                number,
                lambda: commits.append(sandbox.seconds("commit", "--yes")),
                lambda: copies.append(copied(changed, place / "copy", plain)),
            ):
                measure()
            same(workspace, changed)
            sandbox.call("undo", "-s", "bench", "--yes")
    return [
        compared("diff --stat, many files", "git diff --no-index --stat", diffs, gits),
        compared("commit, many files", "cp -a and fsync", commits, copies),
    ]


def sparse(place: Path, files: int, rounds: int) -> list[dict[str, object]]:
    workspace = place / "workspace"
    note(f"making a workspace of {files} files")
    make_files(workspace, files, lines=1)
    diffs: list[float] = []
    commits: list[float] = []
    with mounted(place, workspace) as sandbox:
        chosen = random.Random(2)  # noqa: S311 - the same files every time, no secret
        paths = sorted(path for path in workspace.rglob("*") if path.is_file())
        for path in chosen.sample(paths, 10):
            with (sandbox.view / path.relative_to(workspace)).open("a") as file:
                file.write("appended\n")
        for number in range(rounds):
            note(f"sparse, round {number + 1} of {rounds}")
            diffs.append(sandbox.seconds("diff"))
            commits.append(sandbox.seconds("commit", "--yes"))
            sandbox.call("undo", "-s", "bench", "--yes")
    return [alone("diff, sparse", diffs), alone("commit, sparse", commits)]


def one_text(place: Path, rounds: int) -> dict[str, object]:
    workspace = place / "workspace"
    workspace.mkdir(parents=True)
    chosen = random.Random(3)  # noqa: S311 - the same text every time, no secret
    words = [f"word{number}" for number in range(1000)]
    lines = [" ".join(chosen.choices(words, k=8)) + "\n" for _ in range(330_000)]
    (workspace / "large.txt").write_text("".join(lines))
    for at in chosen.sample(range(len(lines)), 1000):
        lines[at] = chosen.choice(["", f"edited {at}\n", lines[at] + f"added {at}\n"])
    with mounted(place, workspace) as sandbox:
        (sandbox.view / "large.txt").write_text("".join(lines))
        times = []
        for number in range(rounds):
            note(f"one large text, round {number + 1} of {rounds}")
            times.append(sandbox.seconds("diff"))
    return alone("diff, one large text", times)


def alternated(number: int, *measures: Callable[[], None]) -> tuple[Callable[[], None], ...]:
    """Another one begins each round, so that none always follows the same neighbour."""
    return measures if number % 2 == 0 else measures[::-1]


def copied(source: Path, target: Path, environment: dict[str, str]) -> float:
    """Copy a tree and sync each file; the seconds that took."""
    taken = seconds(["cp", "-a", str(source), str(target)], environment)
    taken += seconds(["sh", "-c", _SYNC], environment, cwd=target)
    shutil.rmtree(target)
    return taken


def same(one: Path, other: Path) -> None:
    """A time counts only when the work was done."""
    call(["diff", "-r", "-q", str(one), str(other)], clean_environment())


def make_files(workspace: Path, files: int, *, lines: int) -> None:
    for number in range(files):
        folder = workspace / f"d{number // 2000}" / f"e{number // 50 % 40}"
        if number % 50 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"line {line} of file {number}\n" for line in range(lines))
        (folder / f"f{number}.txt").write_text(text)


def compared(name: str, other: str, own: list[float], plain: list[float]) -> dict[str, object]:
    measured = {"sandboxfs": summary(own), other: summary(plain)}
    return {"row": name, "seconds": measured, "ratio": ratio(own, plain), "target": TARGETS[name]}


def alone(name: str, own: list[float]) -> dict[str, object]:
    return {"row": name, "seconds": {"sandboxfs": summary(own)}, "ratio": None, "target": TARGETS[name]}


def table(result: dict[str, object]) -> str:
    lines = [f"{result['rounds']} rounds, interleaved; seconds, median (quartiles)"]
    rows = result["rows"]
    assert isinstance(rows, list)  # noqa: S101 - made above
    for row in rows:
        lines.append(f"\n{row['row']}")
        for name, value in row["seconds"].items():
            lines.append("  {:<28} {median:7.3f}  ({low:.3f} to {high:.3f})".format(name, **value))
        found = row["ratio"] or row["seconds"]["sandboxfs"]
        word = "ratio" if row["ratio"] else "seconds"
        verdict = "within" if found["median"] <= row["target"] else "OVER"
        lines.append(
            "  {:<28} {median:7.3f}  ({low:.3f} to {high:.3f})".format(word, **found)
            + f", {verdict} the target of {row['target']:g}"
        )
    return "\n".join(lines)
