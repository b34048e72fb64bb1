"""How does sandboxfs do beside the others? Every scene, in every competitor, round by round.

Within a round all competitors play a scene one after the other, so that whatever else the machine does hits
everybody alike; who comes after whom changes from round to round. Times are entered only when what came out
is what came out in the plain directory: by every byte in the first round, by names, types and sizes in the
others.
"""

import argparse
import fnmatch
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.benches import workloads
from scripts.benches.comparing import Book, Row, compare
from scripts.benches.competitors import (
    Competitor,
    Failed,
    View,
    absent,
    everybody,
    install_missing,
    shown,
    sweep,
)
from scripts.benches.disk import NEW_DISK
from scripts.benches.measuring import clean_environment, note
from scripts.benches.names import EVERYBODY, LATENCY, ONE_WAITS, ONLY_SLEEPS, OWN, PLAIN, THINNEST, USUAL
from scripts.benches.showing import Outcome
from scripts.benches.supplies import described_application, make_supplies
from scripts.benches.targets import floors, judge
from scripts.benches.timing import Sample, Stage
from scripts.benches.trees import QUICK, Sizes, make_bulk, make_many, make_project
from scripts.benches.turns import in_turn
from scripts.benches.workloads import NPM, Scene, Step

ROUNDS, SECONDS_IN_ALL, SECONDS_QUICK = 5, 14 * 60, 110


def bench_whole(place: Path, options: argparse.Namespace) -> Outcome:
    begun = time.monotonic()
    sizes = QUICK if options.quick else Sizes()
    names = chosen_names(options.against, floor=options.floor, loop=options.loop, waits=options.waits)
    if options.install:
        install_missing(names)
    left_out = {name: why for name in names if (why := absent(name)) is not None}
    environment = bench_environment(place)
    bench = Bench(
        place,
        environment,
        [one for one in everybody(place, environment) if one.name in names and one.name not in left_out],
        drop_caches=bool(options.drop_caches),
        left_out=left_out,
    )
    synced = transactions_in_time(place, environment, sizes)
    chosen = select(workloads.scenes(sizes, synced), options.rows)
    # Rounds that were asked for are done, however long they take.
    deadline = math.inf if options.rounds else begun + (SECONDS_QUICK if options.quick else SECONDS_IN_ALL)
    with swept(place):
        bench.prepare(sizes, {scene.tree for scene in chosen})
        bench.play_rounds(chosen, options.rounds or ROUNDS, deadline)
    rows = [Row(step.row, step.kind, step.unit) for scene in chosen for step in scene.steps]
    passed = compare(rows, bench.book, passed_time)
    processor = compare(rows, bench.book, processor_time)
    lines, measure = (processor, processor_time) if options.processor else (passed, passed_time)
    # Who asks for some rows is not told what else there is.
    verdicts = [one for one in judge(lines) if one.found is not None or options.rows is None]
    measures = {"passed": passed, "processor": processor}
    lowest = floors(lines, compare(rows, bench.book, measure, own=THINNEST))
    said = [*conditions(options, synced, names), *([NEW_DISK] if place.is_mount() else [])]
    return Outcome(machine(), said, bench.left_out, lines, verdicts, measures, lowest)


def passed_time(sample: Sample) -> float | None:
    return sample.passed


def processor_time(sample: Sample) -> float | None:
    return sample.processor


def chosen_names(
    against: str | None, *, floor: bool = False, loop: bool = False, waits: bool = False
) -> list[str]:
    """The competitors that are wanted; sandboxfs always is, more of them with *floor*, *loop* and *waits*."""
    wanted = set(USUAL if against is None else against.split(","))
    if floor:
        wanted.add(THINNEST)
    if loop:
        wanted.add(ONLY_SLEEPS)
    if waits:
        wanted.add(ONE_WAITS)
    if unknown := wanted - set(EVERYBODY):
        sys.exit(f"bench: nobody is called {', '.join(sorted(unknown))}; there are {', '.join(EVERYBODY)}")
    return [name for name in EVERYBODY if name in wanted | {OWN}]


@dataclass
class Bench:
    place: Path
    environment: Mapping[str, str]
    competitors: list[Competitor]
    drop_caches: bool
    left_out: dict[str, str]
    book: Book = field(default_factory=Book)

    def prepare(self, sizes: Sizes, trees: set[str]) -> None:
        note("making the trees")
        home = self.place / "home"
        for folder in (home, self.place / "trees", self.place / "notes"):
            folder.mkdir(exist_ok=True)
        if "project" in trees:
            project = self.place / "trees" / "project"
            make_project(project, sizes, self.environment)
            make_supplies(self.place / "supplies", project, sizes, self.environment)
            fill_the_cache_of_npm(self.place / "supplies", home, self.environment)
        if "bulk" in trees:
            make_bulk(self.place / "trees" / "bulk", sizes)
        if "many" in trees:
            make_many(self.place / "trees" / "many", sizes)

    def play_rounds(self, scenes: Sequence[Scene], rounds: int, deadline: float) -> None:
        """Everything once; then again, as often as is asked and as time allows."""
        taken = [0.0] * len(scenes)
        for number in range(rounds):
            if number and time.monotonic() + min(taken) > deadline:
                note("no time for another round")
                return
            note(f"round {number + 1} of {rounds}")
            for place, scene in enumerate(scenes):
                begun = time.monotonic()
                if number and begun + taken[place] > deadline:
                    continue
                for again in range(scene.times):
                    self.play(scene, number * scene.times + again)
                taken[place] = time.monotonic() - begun

    def play(self, scene: Scene, number: int) -> None:
        """One scene of one round, by everybody."""
        names = ", ".join(step.row for step in scene.steps if step.kind != LATENCY)
        note(f"  {names or 'one operation'}")
        played: dict[str, dict[str, tuple[Sample, str]]] = {}
        for competitor in in_turn(self.competitors, number):
            if competitor.name in self.left_out or scene.only not in (None, competitor.name):
                continue
            try:
                played[competitor.name] = self._played_by(competitor, scene, number)
            except Failed as problem:
                self.left_out[competitor.name] = str(problem)
                note(f"    {competitor.name}: {problem}")
        self._enter(scene, number, played)

    def _played_by(self, competitor: Competitor, scene: Scene, number: int) -> dict[str, tuple[Sample, str]]:
        if self.drop_caches:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        done: dict[str, tuple[Sample, str]] = {}
        with shown(competitor, self.place / "trees" / scene.tree) as view:
            stage = Stage(view, self.environment, self.place / "supplies", self.place / "notes")
            for step in scene.steps:
                if step.after is None or step.after in done:
                    self._take(step, stage, competitor.name, number, done)
        return done

    def _take(
        self, step: Step, stage: Stage, name: str, number: int, done: dict[str, tuple[Sample, str]]
    ) -> None:
        try:
            sample = step.act(stage)
            done[step.row] = sample, step.proof(stage, number == 0)
        except (Failed, OSError) as problem:
            note(f"    {name}, {step.row}: {problem}")
            self.book.refuse(step.row, name, str(problem))

    def _enter(self, scene: Scene, number: int, played: dict[str, dict[str, tuple[Sample, str]]]) -> None:
        """Enter the times of those who did what the plain directory did."""
        model = played.get(PLAIN if PLAIN in played else OWN, {})
        for name, done in played.items():
            for row, (sample, proof) in done.items():
                if row in model and proof == model[row][1]:
                    self.book.enter(row, name, number, sample)
                else:
                    self.book.refuse(row, name, "did not come to the same as the plain directory")
                    note(f"    {name}, {row}: not the same as the plain directory")


def select(every: list[Scene], pattern: str | None) -> list[Scene]:
    """The scenes with the rows that *pattern* names, and the rows that have to come before them.

    Patterns are separated by semicolons, because names of rows have commas.
    """
    if pattern is None:
        return every
    patterns = pattern.split(";")
    chosen = []
    for scene in every:
        wanted = {step.row for step in scene.steps if any(fnmatch.fnmatch(step.row, one) for one in patterns)}
        wanted |= {step.after for step in scene.steps if step.row in wanted and step.after}
        if wanted:
            steps = tuple(step for step in scene.steps if step.row in wanted)
            chosen.append(replace(scene, steps=steps))
    if not chosen:
        rows = (step.row for scene in every for step in scene.steps)
        sys.exit(f"bench: no row is called {pattern}; there are: {'; '.join(rows)}")
    return chosen


@contextmanager
def swept(place: Path) -> Iterator[None]:
    try:
        yield
    finally:
        sweep(place)


def bench_environment(place: Path) -> dict[str, str]:
    """What every command gets: nothing of the user's own settings."""
    environment = clean_environment(place / OWN / "state")
    # Git is to write its index as it does for people.
    for name in ("PYTHONDONTWRITEBYTECODE", "GIT_OPTIONAL_LOCKS"):
        environment.pop(name, None)
    home = str(place / "home")
    return environment | {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/config",
        "PYTHONPYCACHEPREFIX": f"{home}/bytecode",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "npm_config_cache": f"{home}/npm",
        "LC_ALL": "C.UTF-8",
    }


def fill_the_cache_of_npm(supplies: Path, home: Path, environment: Mapping[str, str]) -> None:
    if shutil.which("npm") is None:
        return
    application = home / "application"
    application.mkdir()
    (application / "package.json").write_text(described_application(supplies / "packages"))
    subprocess.run(NPM, cwd=application, env=dict(environment), check=True, stdout=subprocess.DEVNULL)


def transactions_in_time(place: Path, environment: Mapping[str, str], sizes: Sizes) -> int:
    """How many synced transactions this disk does in about two seconds; 5,000 may take it minutes."""
    trial, count = place / "trial", 30
    trial.mkdir()
    words = [sys.executable, "-I", str(workloads.INSIDE), "sqlite", str(count), "default"]
    taken = []
    for _ in range(3):
        stage = Stage(View(trial, None, 0), environment, trial, place)
        taken.append(stage.run(*words).passed)
        (trial / "default.db").unlink()
    rate = count / statistics.median(taken)
    return max(50, min(sizes.transactions, int(2 * rate) // 50 * 50))


def machine() -> str:
    processors = os.cpu_count() or 1
    load = f"load {os.getloadavg()[0]:.1f}"
    return f"Linux {platform.release()}, {processors} processors, Python {platform.python_version()}, {load}"


def conditions(options: argparse.Namespace, synced: int, names: Sequence[str] = ()) -> list[str]:
    """What has to be known to read the table."""
    measure = "processor time of programs and daemon" if options.processor else "time that passed"
    said = [
        f"medians of interleaved rounds, n of them; {measure}; "
        "ratios of sandboxfs to the others within a round, with their quartiles",
        f"sqlite, synced: {synced} transactions, as many as this disk does in about two seconds",
        "cold: a new mount" + (", page caches dropped" if options.drop_caches else "; page caches stay"),
    ]
    if THINNEST in names:
        said.append(
            f"{THINNEST}: the thinnest filesystem on it; one directory, no layers, rules, log or watching"
        )
    if options.quick:
        said.append("quick: smaller sizes than the rows are named for; the targets are for the full run")
    return said
