"""What does a run cost around the program? `true` alone, in bubblewrap, in a run, and in a joined one.

Beside them what a user waits for without noticing: `--version`, and `diff` where nothing has changed. Time
that passed says whether a target holds, on an idle machine; processor time can be compared on any.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sandboxfs.confine.detect import try_bubblewrap
from sandboxfs.confine.mounts import ConfinedMounts, bubblewrap_arguments, find_system, interpreter_directory

SANDBOXFS = [sys.executable, "-m", "sandboxfs"]
ROWS = ("true", "bubblewrap", "mount and unmount", "run", "run, joining", "--version", "diff")
TARGETS = {"run": 400, "run, joining": 150}


def bench_run(place: Path, options: argparse.Namespace) -> dict[str, object]:
    """Time each way to run `true`, interleaved."""
    workspace = place / "workspace"
    workspace.mkdir()
    (workspace / "file").write_text("text\n")
    environment = os.environ | {
        "SANDBOXFS_STATE_DIR": str(place / "state"),
        "HOME": str(place / "home"),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
        ),
    }
    (place / "home").mkdir()
    found = try_bubblewrap()
    if found.problem is not None or found.program is None:
        sys.exit(f"bench: no bubblewrap: {found.problem}")
    world = ConfinedMounts(find_system(interpreter_directory()), ((workspace, workspace),))
    wrapped = [str(found.program), *bubblewrap_arguments(world, filter_descriptor=None, sizes=found.sizes)]
    commands = {
        "true": [["true"]],
        "bubblewrap": [[*wrapped, "--", "true"]],
        "mount and unmount": [
            [*SANDBOXFS, "mount", "--name", "plain", "--mkdir", str(workspace), str(place / "plain")],
            [*SANDBOXFS, "unmount", "-s", "plain"],
        ],
        "run": [[*SANDBOXFS, "run", "--quiet", "--", "true"]],
        "run, joining": [[*SANDBOXFS, "run", "--quiet", "-s", "served", "--", "true"]],
        "--version": [[*SANDBOXFS, "--version"]],
        "diff": [[*SANDBOXFS, "diff", "-s", "served"]],
    }
    served = [*SANDBOXFS, "mount", "--name", "served", "--mkdir", str(workspace), str(place / "view")]
    subprocess.run(served, env=environment, cwd=workspace, check=True, capture_output=True)
    times: dict[str, list[tuple[float, float]]] = {row: [] for row in ROWS}
    try:
        for turn in range(options.rounds + 1):
            for row in ROWS:
                taken = _time(commands[row], workspace, environment)
                if turn:
                    # The first compiles and fills caches.
                    times[row].append(taken)
    finally:
        subprocess.run(
            [*SANDBOXFS, "unmount", "-s", "served"], env=environment, check=True, capture_output=True
        )
    return {
        "rounds": options.rounds,
        "milliseconds": {row: _summary([wall for wall, _ in taken]) for row, taken in times.items()},
        "processor": {row: _summary([used for _, used in taken]) for row, taken in times.items()},
    }


def _time(commands: list[list[str]], cwd: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Run *commands*; return the time that passed and the processor time in ms, with the daemons of runs."""
    begun, used = time.perf_counter(), _processor_time()
    for command in commands:
        subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000, (_processor_time() - used) * 1000


def _processor_time() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _summary(values: list[float]) -> list[float]:
    """The fastest, the quartiles and the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return [round(value, 1) for value in (min(values), low, middle, high)]


def table(result: dict[str, object]) -> str:
    """Write the result as a table, and what it says about the targets."""
    rows, processor = result["milliseconds"], result["processor"]
    assert isinstance(rows, dict)  # noqa: S101 - for the type checker
    assert isinstance(processor, dict)  # noqa: S101 - for the type checker
    lines = [
        f"| milliseconds, {result['rounds']} rounds | fastest | median | quartiles | processor, median |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row} | {least:.0f} | {middle:.0f} | {low:.0f} to {high:.0f} | {processor[row][2]:.0f} |"
        for row, (least, low, middle, high) in rows.items()
    ]
    middles = {row: values[2] for row, values in rows.items()}
    lines += [""]
    for row, target in TARGETS.items():
        lines.append(f"{row}, over `true`: {middles[row] - middles['true']:.0f} of {target} allowed")
    allowed = 3 * middles["bubblewrap"] + middles["mount and unmount"]
    lines.append(f"run: {middles['run']:.0f} of {allowed:.0f}, three times bubblewrap and the mount")
    return "\n".join(lines)
