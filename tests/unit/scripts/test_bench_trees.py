"""Does the benchmark measure what it says? Its trees, its proofs and its choice of rows, without a mount."""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benches import whole
from scripts.benches.competitors import Competitor, Failed, View, mirror, put_aside
from scripts.benches.inside import BATCHES, asset
from scripts.benches.names import (
    EVERYBODY,
    FUSE_OVERLAYFS,
    LATENCIES,
    ONE_WAITS,
    ONLY_SLEEPS,
    OWN,
    PLAIN,
    THINNEST,
    USUAL,
)
from scripts.benches.supplies import described_application, make_package, make_wheel
from scripts.benches.timing import Sample, Stage, everything
from scripts.benches.trees import Sizes, edited_sources, make_bulk, make_many, make_project
from scripts.benches.workloads import INSIDE, Scene, Step, scenes

SMALL = Sizes(
    assets=40,
    sources=60,
    modules=5,
    units=4,
    edited=9,
    many=200,
    megabytes=2,
    appended_megabytes=3,
    packages=2,
)


def stage(path: Path) -> Stage:
    return Stage(View(path, None, 0.0), os.environ, path, path.parent)


def test_the_project_is_the_same_every_time_and_its_branches_differ(tmp_path: Path) -> None:
    environment = whole.bench_environment(tmp_path)
    (tmp_path / "home").mkdir()
    digests = []
    for name in ("one", "two"):
        make_project(tmp_path / name, SMALL, environment)
        digests.append(everything(tmp_path / name, True, leave=lambda found: found == ".git"))
    assert digests[0] == digests[1]
    assert all((tmp_path / "one" / name).is_file() for name in edited_sources(SMALL))
    changed = ["git", "diff", "--name-only", "main", "other"]
    said = subprocess.run(changed, cwd=tmp_path / "one", env=environment, capture_output=True, check=True)
    assert len(said.stdout.splitlines()) == 60 // 4 + 60 // 20


def test_the_full_project_has_seven_thousand_files_or_a_few_less() -> None:
    sizes = Sizes()
    assert 6_500 < sizes.assets + sizes.sources + sizes.modules + sizes.units < 7_500
    assert sizes.assets == 5_000
    assert sizes.edited == 500


def test_the_huge_file_is_almost_all_hole(tmp_path: Path) -> None:
    make_bulk(tmp_path / "bulk", SMALL)
    found = (tmp_path / "bulk" / "huge").stat()
    assert found.st_size == 3 << 20
    assert found.st_blocks * 512 < 1 << 20
    assert (tmp_path / "bulk" / "large").stat().st_size == 2 << 20


def test_there_are_as_many_files_to_walk_as_is_said(tmp_path: Path) -> None:
    make_many(tmp_path / "many", SMALL)
    assert sum(len(names) for _, _, names in os.walk(tmp_path / "many")) == 200


def test_a_wheel_lists_every_file_that_it_has(tmp_path: Path) -> None:
    make_wheel(tmp_path, "wheel0", parts=3)
    with zipfile.ZipFile(tmp_path / "wheel0-1.0-py3-none-any.whl") as wheel:
        record = wheel.read("wheel0-1.0.dist-info/RECORD").decode().splitlines()
        assert sorted(line.partition(",")[0] for line in record) == sorted(wheel.namelist())


def test_an_application_asks_for_every_package(tmp_path: Path) -> None:
    make_package(tmp_path, "package0", parts=3)
    with tarfile.open(tmp_path / "package0-1.0.0.tgz") as archive:
        assert "package/package.json" in archive.getnames()
    wanted = json.loads(described_application(tmp_path))["dependencies"]
    assert wanted == {"package0": f"file:{tmp_path}/package0-1.0.0.tgz"}


def test_the_plain_copy_is_put_right_whatever_was_done_to_it(tmp_path: Path) -> None:
    source, copy, used = tmp_path / "source", tmp_path / "copy", tmp_path / "used"
    for name in ("a/one", "a/two", "b/three", "b/c/four"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "link").symlink_to("a/one")
    mirror(source, copy, used)
    before = everything(source, True)
    assert everything(copy, True) == before
    (copy / "a" / "one").write_text("another text")
    (copy / "a" / "two").chmod(0o600)
    (copy / "b").rename(copy / "moved")
    (copy / "link").unlink()
    (copy / "link").mkdir()
    (copy / "new").write_text("new")
    mirror(source, copy, used)
    assert everything(copy, True) == before
    assert everything(source, True) == before


def test_what_is_put_aside_is_kept_but_for_large_files(tmp_path: Path) -> None:
    upper, used = tmp_path / "upper", tmp_path / "used"
    for _ in range(2):
        (upper / "inner").mkdir(parents=True)
        (upper / "inner" / "small").write_text("text")
        (upper / "large").write_bytes(b"x" * (2 << 20))
        put_aside(upper, used)
        put_aside(upper, used)
        assert not upper.exists()
    kept = sorted(path.relative_to(used).parts[1:] for path in used.rglob("*") if path.is_file())
    assert kept == [("upper", "inner", "small")] * 2


@pytest.mark.parametrize("data", [True, False])
def test_a_proof_tells_names_permissions_and_sizes_apart(tmp_path: Path, data: bool) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("one")
    digests = {everything(tree, data)}
    (tree / "a").chmod(0o600)
    digests.add(everything(tree, data))
    (tree / "a").rename(tree / "b")
    digests.add(everything(tree, data))
    (tree / "b").write_text("four")
    digests.add(everything(tree, data))
    assert len(digests) == 4


def test_a_proof_of_all_bytes_tells_texts_of_one_length_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    first = everything(tmp_path, True), everything(tmp_path, False)
    (tmp_path / "a").write_text("two")
    second = everything(tmp_path, True), everything(tmp_path, False)
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_a_command_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    with pytest.raises(Failed, match="sh ended with 3: it broke"):
        stage(tmp_path / "view").run("sh", "-c", "echo it broke >&2; exit 3")


def test_every_row_has_a_name_of_its_own_and_comes_after_what_it_needs() -> None:
    for scene in scenes(Sizes(), 100):
        seen: set[str] = set()
        for step in scene.steps:
            assert step.after is None or step.after in seen
            seen.add(step.row)
    rows = [step.row for scene in scenes(Sizes(), 100) for step in scene.steps]
    assert len(rows) == len(set(rows))
    assert set(LATENCIES) <= set(rows)


def test_chosen_rows_bring_along_what_has_to_come_before() -> None:
    chosen = whole.select(scenes(Sizes(), 100), "find, warm;rm -rf*")
    assert [[step.row for step in scene.steps] for scene in chosen] == [
        ["find, cold", "find, warm"],
        ["npm install", "rm -rf node_modules"],
    ]


def test_rows_and_competitors_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(SystemExit, match="no row is called nothing; there are: mount ready; find, cold"):
        whole.select(scenes(Sizes(), 100), "nothing")
    with pytest.raises(SystemExit, match="nobody is called aufs; there are plain, overlayfs"):
        whole.chosen_names("plain,aufs")
    assert whole.chosen_names("plain") == [PLAIN, OWN]


def test_the_floor_takes_part_only_when_it_is_asked_for() -> None:
    assert THINNEST not in whole.chosen_names(None)
    assert whole.chosen_names(None, floor=True) == [*USUAL, THINNEST]
    asked = [PLAIN, FUSE_OVERLAYFS, OWN, THINNEST]
    assert whole.chosen_names("plain,fuse-overlayfs,pyfuse3") == asked
    assert whole.chosen_names("plain,fuse-overlayfs", floor=True) == asked


def test_another_loop_takes_part_only_when_it_is_asked_for() -> None:
    assert ONLY_SLEEPS not in whole.chosen_names(None)
    assert whole.chosen_names("plain", loop=True) == [PLAIN, OWN, ONLY_SLEEPS]
    assert whole.chosen_names("plain", waits=True) == [PLAIN, OWN, ONE_WAITS]
    assert whole.chosen_names(None, floor=True, loop=True, waits=True) == list(EVERYBODY)


def test_the_operations_are_timed_each_and_leave_nothing(tmp_path: Path) -> None:
    count = 2 * BATCHES
    for number in range(1_000 + count):
        path = tmp_path / asset(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    words = [sys.executable, "-I", str(INSIDE), "latencies", str(count)]
    said = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert set(said["microseconds"]) == set(LATENCIES)
    assert all(value > 0 for value in said["microseconds"].values())
    left, listed = said["proof"]
    assert left == []
    assert len(listed) == 1_000


class Shown:
    """A competitor that shows a directory as it is."""

    def __init__(self, name: str, view: Path) -> None:
        self.name = name
        self.view = view

    def show(self, tree: Path) -> Iterator[View]:
        yield View(self.view, None, 0.0)


def test_a_time_counts_only_where_the_same_came_out(tmp_path: Path) -> None:
    for name, text in ((PLAIN, "right"), (OWN, "right"), ("overlayfs", "wrong")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    (tmp_path / "notes").mkdir()
    competitors: list[Competitor] = [Shown(name, tmp_path / name) for name in (PLAIN, OWN, "overlayfs")]
    bench = whole.Bench(tmp_path, os.environ, competitors, drop_caches=False, left_out={})
    step = Step("cat", lambda stage: stage.run("cat", "file"), lambda stage, _: stage.lines())
    bench.play_rounds([Scene("tree", (step,))], rounds=2, deadline=float("inf"))
    assert set(bench.book.samples) == {("cat", PLAIN), ("cat", OWN)}
    assert set(bench.book.failures) == {("cat", "overlayfs")}


def test_everything_is_done_once_however_little_time_there_is(tmp_path: Path) -> None:
    view = tmp_path / "view"
    view.mkdir()
    bench = whole.Bench(tmp_path, os.environ, [Shown(OWN, view)], drop_caches=False, left_out={})
    steps = [Step(name, lambda stage: Sample(1.0), lambda stage, _: "") for name in ("one", "two")]
    bench.play_rounds([Scene("tree", (step,)) for step in steps], rounds=5, deadline=0.0)
    assert {key: len(samples) for key, samples in bench.book.samples.items()} == {
        ("one", OWN): 1,
        ("two", OWN): 1,
    }


def test_what_a_round_has_twice_is_entered_twice_and_proven_by_every_byte_once(tmp_path: Path) -> None:
    view = tmp_path / "view"
    view.mkdir()
    looked: list[bool] = []

    def proof(_: Stage, thoroughly: bool) -> str:
        looked.append(thoroughly)
        return ""

    step = Step("one", lambda stage: Sample(1.0), proof)
    bench = whole.Bench(tmp_path, os.environ, [Shown(OWN, view)], drop_caches=False, left_out={})
    bench.play_rounds([Scene("tree", (step,), times=2)], rounds=3, deadline=float("inf"))
    assert sorted(bench.book.samples["one", OWN]) == [0, 1, 2, 3, 4, 5]
    assert looked == [True, False, False, False, False, False]


def test_chosen_rows_are_played_as_often_as_their_scene() -> None:
    every = scenes(Sizes(), 100)
    times = {step.row: scene.times for scene in every for step in scene.steps}
    chosen = whole.select(every, "sequential read;sequential write")
    expected = [times["sequential read"], times["sequential write"]]
    assert [scene.times for scene in chosen] == expected == [3, 1]


def test_the_blocks_of_a_file_are_read_where_all_of_it_was_read_before(tmp_path: Path) -> None:
    view = tmp_path / "view"
    make_bulk(view, SMALL)
    ran: list[tuple[str | Path, ...]] = []

    class Listed(Stage):
        def run(self, *words: str | Path, within: str = ".") -> Sample:
            ran.append(words)
            return Sample(float(len(ran)))

    steps = {step.row: step for scene in scenes(SMALL, 1) for step in scene.steps}
    listed = Listed(View(view, None, 0.0), os.environ, tmp_path, tmp_path)
    # Only the second command counts.
    assert steps["random read"].act(listed) == Sample(2.0)
    assert [words[0] for words in ran] == ["dd", sys.executable]


def test_quick_runs_say_that_they_are_smaller() -> None:
    options = argparse.Namespace(processor=False, drop_caches=False, quick=True)
    assert any("smaller sizes" in line for line in whole.conditions(options, 100))


def test_what_the_floor_is_is_said_where_it_takes_part() -> None:
    options = argparse.Namespace(processor=False, drop_caches=False, quick=False)
    assert not any(THINNEST in line for line in whole.conditions(options, 100, [PLAIN, OWN]))
    assert any(THINNEST in line for line in whole.conditions(options, 100, [PLAIN, OWN, THINNEST]))
