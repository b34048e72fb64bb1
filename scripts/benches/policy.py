"""What do rules cost? The same commands in views with no rules, the built-in ones, and a thousand.

Each round mounts every variant afresh, in turn, and times the same commands in it: the first time is *cold*
(the mount has just been made, the kernel knows nothing of it), then *warm*. Beside the time that passed, the
processor time of the daemon is taken, which a busy machine disturbs less.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from scripts.benches.measuring import SANDBOXFS, call, clean_environment, note, ratio, summary

COMMANDS = {
    "find": ["find", ".", "-type", "f", "-newer", "."],
    "git status": ["git", "status", "--porcelain"],
}
TARGETS = {("1000 rules", "default"): 1.05, ("default", "rules off"): 1.10}


Sample = tuple[float, float]
Times = dict[tuple[str, str, str], list[Sample]]
MEASURES = ("time passed", "daemon's processor time")


def bench_policy(place: Path, options: argparse.Namespace) -> dict[str, object]:
    workspace = place / "workspace"
    make_tree(workspace, options.files)
    variants = {
        "rules off": ["--preset", "full-access"],
        "default": [],
        f"{options.rules} rules": ["--config", str(write_rules(place / "config.toml", options.rules))],
    }
    names = list(variants)
    times: Times = defaultdict(list)
    for number in range(options.rounds):
        note(f"round {number + 1} of {options.rounds}")
        for command, words in COMMANDS.items():
            # Another one begins each time, so that none always follows the same neighbour.
            for name in names[number % len(names) :] + names[: number % len(names)]:
                with mounted(place, workspace, variants[name]) as (view, daemon):
                    times[name, command, "cold"].append(timed(words, view, daemon))
                    warm = [timed(words, view, daemon) for _ in range(options.warm)]
                    passed, used = (statistics.median(values) for values in zip(*warm, strict=True))
                    times[name, command, "warm"].append((passed, used))
    return report(times, names, options)


def make_tree(workspace: Path, files: int) -> None:
    """A repository of many small files in nested directories, all of them committed."""
    chosen = random.Random(1)  # noqa: S311 - the same tree every time, no secret
    words = ["core", "util", "view", "model", "test", "data", "page", "form"]
    endings = [".py", ".js", ".txt", ".json", ".md", ".html", ".css", ".c"]
    for number in range(files):
        folder = workspace / f"pkg{number // 500}" / words[number // 50 % 8] / f"d{number // 25 % 20}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{chosen.choice(words)}{number}{chosen.choice(endings)}"
        (folder / name).write_text(f"line {number}\n" * 5)
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]
    for words_ in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
        subprocess.run(["git", *identity, *words_], cwd=workspace, check=True, env=clean_environment())


def write_rules(path: Path, count: int) -> Path:
    """Rules of every kind that patterns come in; most match nothing, some match something."""
    kinds = [
        "pkg{0}/core/d{1}/secret{2}.key",  # a literal path from the root
        "**/private{2}",  # a name at any depth
        "*.sec{2}",  # a suffix
        "token{2}*",  # a prefix
        "pkg{0}/**/draft{2}-*.tmp",  # a prefix below a directory
        "**/vendor{1}/lib{2}/*.so",  # two names in a row, anywhere
        "[ab]uild{2}?",  # classes
        "pkg{0}/view/d{1}/**/cache{2}",
    ]
    modes = ["hide", "deny", "ro", "rw"]
    rules = []
    for number in range(count):
        pattern = kinds[number % len(kinds)].format(number % 20, number % 19, number)
        rules.append(f'[[rule]]\npath = "{pattern}"\nmode = "{modes[number // 8 % 4]}"\n')
    path.write_text("\n".join(rules))
    return path


@contextmanager
def mounted(place: Path, workspace: Path, options: list[str]) -> Iterator[tuple[Path, int]]:
    """The view of a new sandbox, and the daemon that serves it."""
    view = place / "view"
    view.mkdir(exist_ok=True)
    environment = clean_environment(place / "state")

    def own(*words: str) -> str:
        return call([*SANDBOXFS, *words], environment)

    said = own("mount", "--json", "--name", "bench", *options, str(workspace), str(view))
    try:
        yield view, json.loads(said)["pid"]
    finally:
        own("unmount", "--wait", str(view))
        # The next variant begins as this one did.
        own("rm", "--force", "bench")


def timed(words: list[str], view: Path, daemon: int) -> Sample:
    """Seconds that passed, and seconds of processor time that the daemon took."""
    environment = clean_environment()
    used = processor_time(daemon)
    begun = time.perf_counter()
    subprocess.run(words, cwd=view, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begun, processor_time(daemon) - used


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have run, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def report(times: Times, names: list[str], options: argparse.Namespace) -> dict[str, object]:
    rows = []
    for command, state in product(COMMANDS, ("cold", "warm")):
        for number, measure in enumerate(MEASURES):
            measured = {name: [one[number] for one in times[name, command, state]] for name in names}
            rows.append(
                {
                    "command": command,
                    "state": state,
                    "measure": measure,
                    "seconds": {name: summary(values) for name, values in measured.items()},
                    "ratios": {
                        f"{above} / {below}": {**ratio(measured[above], measured[below]), "target": target}
                        for above, below, target in (
                            (names[2], names[1], TARGETS["1000 rules", "default"]),
                            (names[1], names[0], TARGETS["default", "rules off"]),
                        )
                    },
                }
            )
    return {"files": options.files, "rules": options.rules, "rounds": options.rounds, "rows": rows}


def table(result: dict[str, object]) -> str:
    lines = [
        f"{result['files']} files, {result['rounds']} interleaved rounds; milliseconds, median (quartiles)",
    ]
    rows = result["rows"]
    assert isinstance(rows, list)  # noqa: S101 - made above
    for row in rows:
        lines.append(f"\n{row['command']}, {row['state']}, {row['measure']}")
        for name, value in row["seconds"].items():
            numbers = [1000 * value[key] for key in ("median", "low", "high")]
            lines.append("  {:<12} {:8.1f}  ({:.1f} to {:.1f})".format(name, *numbers))
        for name, value in row["ratios"].items():
            verdict = "within" if value["median"] <= value["target"] else "OVER"
            lines.append(
                f"  {name:<24} {value['median']:.3f}  ({value['low']:.3f} to {value['high']:.3f}), "
                f"{verdict} the target of {value['target']:.2f}"
            )
    return "\n".join(lines)
