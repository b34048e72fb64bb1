"""What every benchmark needs: commands run in a clean environment, numbers made of several rounds."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SANDBOXFS = [sys.executable, "-m", "sandboxfs"]


def clean_environment(state: Path | None = None) -> dict[str, str]:
    """The environment without what the user set for git and sandboxfs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SANDBOXFS_", "GIT_"))}
    path = os.pathsep.join(filter(None, [str(PROJECT), kept.get("PYTHONPATH")]))
    # The index is not to be written, or the second run would find another state than the first.
    kept |= {"PYTHONPATH": path, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    return kept if state is None else kept | {"SANDBOXFS_STATE_DIR": str(state)}


def call(words: list[str], environment: dict[str, str], cwd: Path | None = None) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def seconds(
    words: list[str], environment: dict[str, str], cwd: Path | None = None, fine: tuple[int, ...] = (0,)
) -> float:
    """How long a command takes, its output thrown away; it must end with one of the codes in *fine*."""
    begun = time.perf_counter()
    done = subprocess.run(
        words, env=environment, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    passed = time.perf_counter() - begun
    if done.returncode not in fine:
        sys.exit(f"bench: {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return passed


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = quartiles(values)
    return {"median": middle, "low": low, "high": high}


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """The ratio of the medians, and the quartiles of the ratios within each round."""
    low, middle, high = quartiles([one / other for one, other in zip(above, below, strict=True)])
    return {
        "of medians": statistics.median(above) / statistics.median(below),
        "median": middle,
        "low": low,
        "high": high,
    }


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)
