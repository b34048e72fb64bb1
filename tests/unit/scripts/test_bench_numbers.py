"""Does the benchmark reckon, judge and draw rightly? Its pure parts, with numbers made up here."""

import json
import math
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

import pytest

from scripts.benches.chart import drawn
from scripts.benches.comparing import Book, Line, Row, compare, geometric_mean, spread, workload_ratios
from scripts.benches.names import (
    FUSE_OVERLAYFS,
    LATENCIES,
    LATENCY,
    MEGABYTES,
    MEMORY,
    MICROSECONDS,
    MOUNT_READY,
    OVERLAYFS,
    OWN,
    PLAIN,
    RULES_OFF,
    SECONDS,
    SINGLE,
    THINNEST,
    WORKLOAD,
)
from scripts.benches.showing import Outcome, as_json, means, table
from scripts.benches.targets import Floor, floors, judge
from scripts.benches.timing import Sample

FIND = Row("find, warm", WORKLOAD, SECONDS)
UNTAR = Row("untar", WORKLOAD, SECONDS)


def filled(times: Mapping[tuple[str, str], Sequence[float]]) -> Book:
    book = Book()
    for (row, competitor), values in times.items():
        for number, value in enumerate(values):
            book.enter(row, competitor, number, Sample(value, value / 2))
    return book


def passed(rows: Sequence[Row], book: Book) -> list[Line]:
    return compare(rows, book, lambda sample: sample.passed)


def outcome(lines: Sequence[Line]) -> Outcome:
    return Outcome("a machine", ["a condition"], {}, lines, judge(lines), {"passed": lines})


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine was ten times slower in the second round, for both alike.
    book = filled({("untar", OWN): [2.0, 20.0, 2.2], ("untar", PLAIN): [1.0, 10.0, 1.0]})
    (line,) = passed([UNTAR], book)
    assert line.ratios[PLAIN].median == pytest.approx(2.0)
    assert line.ratios[PLAIN].high == pytest.approx(2.1)
    assert line.values[OWN].median == pytest.approx(2.2)
    assert line.rounds == 3


def test_rounds_that_only_one_of_two_played_give_no_ratio() -> None:
    book = filled({("untar", OWN): [2.0, 3.0], ("untar", PLAIN): [1.0]})
    (line,) = passed([UNTAR], book)
    assert line.ratios[PLAIN] == spread([2.0])


def test_what_was_too_short_for_the_clock_has_no_ratio() -> None:
    book = filled({("untar", OWN): [0.0, 3.0, -0.1, 2.0], ("untar", PLAIN): [1.0, 0.0, 1.0, -0.2]})
    (line,) = passed([UNTAR], book)
    assert not line.ratios
    assert means([line]) == {}


def test_who_came_to_something_else_once_is_not_counted_at_all() -> None:
    book = filled({("untar", OWN): [2.0, 2.0], ("untar", PLAIN): [1.0, 1.0]})
    book.refuse("untar", OWN, "not the same")
    (line,) = passed([UNTAR], book)
    assert OWN not in line.values
    assert not line.ratios
    assert line.failed == {OWN: "not the same"}


def test_a_row_without_processor_time_has_no_line_of_it() -> None:
    book = Book()
    book.enter(MEMORY, OWN, 0, Sample(42.0))
    assert compare([Row(MEMORY, SINGLE, MEGABYTES)], book, lambda sample: sample.processor) == []


def test_half_the_time_and_twice_the_time_are_equal_on_average() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


def test_the_mean_is_of_workload_rows_only() -> None:
    book = filled({(row, OWN): [4.0] for row in ("untar", "chmod")})
    for row in ("untar", "chmod"):
        book.enter(row, FUSE_OVERLAYFS, 0, Sample(2.0))
    lines = passed([UNTAR, Row("chmod", LATENCY, MICROSECONDS)], book)
    assert workload_ratios(lines, FUSE_OVERLAYFS) == {"untar": pytest.approx(2.0)}
    assert means(lines) == {FUSE_OVERLAYFS: pytest.approx(2.0)}


def test_the_ratios_can_be_those_of_another_one() -> None:
    book = filled(
        {("untar", OWN): [4.0, 40.0], ("untar", THINNEST): [2.0, 20.0], ("untar", PLAIN): [1.0, 10.0]}
    )
    (line,) = compare([UNTAR], book, lambda sample: sample.passed, own=THINNEST)
    assert line.ratios == {PLAIN: spread([2.0, 2.0])}
    (own,) = passed([UNTAR], book)
    assert own.ratios == {PLAIN: spread([4.0, 4.0]), THINNEST: spread([2.0, 2.0])}


def everything_measured(ratio: float, own: str = OWN) -> list[Line]:
    """A line for every target, all of them at the same ratio of *own* to the others."""
    rows = [FIND, Row("git status, warm", WORKLOAD, SECONDS), Row("grep -r, warm", WORKLOAD, SECONDS)]
    rows += [Row(name, LATENCY, MICROSECONDS) for name in LATENCIES]
    rows += [Row(MOUNT_READY, SINGLE, SECONDS), Row(MEMORY, SINGLE, MEGABYTES)]
    others = (PLAIN, OVERLAYFS, FUSE_OVERLAYFS, RULES_OFF)
    times = {(row.name, other): [1.0] for row in rows for other in others}
    book = filled(times | {(row.name, own): [ratio] for row in rows})
    return compare(rows, book, lambda sample: sample.passed, own)


def test_every_target_is_judged() -> None:
    verdicts = judge(everything_measured(0.1))
    assert [verdict.word for verdict in verdicts] == ["within"] * 17
    limits = {verdict.target: verdict.limit for verdict in verdicts}
    assert limits["geometric mean of workload rows / fuse-overlayfs"] == 0.75
    assert limits["git status, warm / plain"] == 1.3
    assert limits["mount ready (s)"] == 0.3
    assert limits["geometric mean of workload rows / rules off"] == 1.1


def test_a_mean_is_told_without_the_extremes_too() -> None:
    ratios = [0.001, 0.002, 0.5, 2.0, 50.0, 60.0]
    rows = [Row(f"row {number}", WORKLOAD, SECONDS) for number in range(len(ratios))]
    times = {(row.name, OVERLAYFS): [1.0] for row in rows}
    times |= {(row.name, OWN): [ratio] for row, ratio in zip(rows, ratios, strict=True)}
    verdicts = {verdict.target: verdict for verdict in judge(passed(rows, filled(times)))}
    remark = verdicts["geometric mean of workload rows / overlayfs"].remark
    assert remark == "6 rows; 1.00 without the 2 best and the 2 worst"


def test_what_is_over_its_target_is_said_with_the_rows_that_are() -> None:
    verdicts = {verdict.target: verdict for verdict in judge(everything_measured(2.0))}
    single = verdicts["every single workload row / fuse-overlayfs"]
    assert single.word == "OVER"
    assert "find, warm 2.00" in single.remark
    assert verdicts["find, warm / plain"].word == "within"
    assert verdicts["chmod / fuse-overlayfs"].word == "OVER"


def test_a_target_that_was_not_measured_is_neither_within_nor_over() -> None:
    assert {verdict.word for verdict in judge([])} == {"not measured"}


def test_what_is_over_its_target_has_a_floor_each_row_by_itself() -> None:
    found = floors(everything_measured(2.0), everything_measured(1.5, THINNEST))
    named = {floor.target: floor for floor in found}
    assert named["find, warm / fuse-overlayfs"] == Floor("find, warm / fuse-overlayfs", 1.2, 2.0, 1.5)
    assert named["chmod / fuse-overlayfs"].lowest == 1.5
    assert named["git status, warm / plain"] == Floor("git status, warm / plain", 1.3, 2.0, 1.5)
    mean = named["geometric mean of workload rows / fuse-overlayfs"]
    assert mean.lowest == pytest.approx(1.5)
    assert len(found) == len(named) == 1 + 3 + len(LATENCIES) + 1


def test_what_is_within_its_target_and_what_is_no_ratio_to_others_has_no_floor() -> None:
    lowest = everything_measured(0.5, THINNEST)
    assert floors(everything_measured(0.7), lowest) == []
    targets = {floor.target for floor in floors(everything_measured(500.0), lowest)}
    assert "find, warm / plain" in targets
    assert "geometric mean of workload rows / overlayfs" in targets
    assert not any(MOUNT_READY in target or MEMORY in target or RULES_OFF in target for target in targets)


def test_where_the_thinnest_took_no_part_nothing_is_said_of_floors() -> None:
    lines = everything_measured(2.0)
    assert floors(lines, []) == []
    nobody = compare([FIND], filled({("find, warm", PLAIN): [1.0]}), lambda sample: sample.passed, THINNEST)
    assert floors(lines, nobody) == []
    assert "how low" not in table(outcome(lines))


def test_a_row_that_the_thinnest_did_not_fill_has_an_unknown_floor() -> None:
    thinnest = [line for line in everything_measured(1.0, THINNEST) if line.row != FIND]
    named = {floor.target: floor.lowest for floor in floors(everything_measured(2.0), thinnest)}
    assert named["find, warm / fuse-overlayfs"] is None
    assert named["git status, warm / plain"] == 1.0


def test_floors_are_shown_after_the_targets_and_are_in_the_json() -> None:
    lines = everything_measured(2.0)
    found = floors(lines, everything_measured(1.25, THINNEST))
    whole = Outcome("a machine", [], {}, lines, judge(lines), {"passed": lines}, found)
    shown = table(whole).splitlines()
    (head,) = (number for number, line in enumerate(shown) if line.startswith("how low pyfuse3 could go"))
    assert shown.index("targets") < head
    (row,) = (line for line in shown[head:] if "git status, warm / plain" in line)
    assert row.split() == ["git", "status,", "warm", "/", "plain", "2", "1.25", "at", "most", "1.3"]
    read = json.loads(json.dumps(as_json(whole)))
    assert {"target": "chmod / fuse-overlayfs", "limit": 1.2, "found": 2.0, "lowest": 1.25} in read["floors"]


def test_the_table_has_the_plain_time_and_the_ratios_and_who_failed() -> None:
    book = filled({("untar", OWN): [3.0, 3.0], ("untar", PLAIN): [1.5, 1.0]})
    book.refuse("untar", OVERLAYFS, "it broke")
    shown = table(outcome(passed([UNTAR], book)))
    (row,) = (line for line in shown.splitlines() if line.startswith("  untar  "))
    assert row.split() == ["untar", "2", "1.250", "s", "3.000", "s", "2.50", "(2.25-2.75)"]
    assert "untar, overlayfs: it broke" in shown


def test_the_json_has_every_row_with_its_quartiles() -> None:
    lines = everything_measured(0.25)
    read = json.loads(json.dumps(as_json(outcome(lines))))
    assert [row["name"] for row in read["passed"]["rows"]] == [line.row.name for line in lines]
    assert read["passed"]["rows"][0]["ratios"][PLAIN] == {"median": 0.25, "low": 0.25, "high": 0.25}
    assert {target["verdict"] for target in read["targets"]} == {"within"}


def test_the_json_has_every_number_by_its_round() -> None:
    lines = passed([UNTAR], filled({("untar", OWN): [2.0, 3.0], ("untar", PLAIN): [1.0]}))
    (row,) = json.loads(json.dumps(as_json(outcome(lines))))["passed"]["rows"]
    assert row["taken"] == {OWN: {"0": 2.0, "1": 3.0}, PLAIN: {"0": 1.0}}


def test_the_chart_is_a_well_formed_picture_with_a_bar_for_each_row() -> None:
    odd = Row("cp <a> & b", WORKLOAD, SECONDS)
    book = filled({(odd.name, OWN): [0.001], (odd.name, FUSE_OVERLAYFS): [1.0]})
    for row, ratio in (("find, warm", 0.5), ("untar", 5000.0)):
        book.enter(row, OWN, 0, Sample(ratio))
        book.enter(row, FUSE_OVERLAYFS, 0, Sample(1.0))
    picture = ElementTree.fromstring(drawn(outcome(passed([odd, FIND, UNTAR], book))))  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{space}text")]
    bars = list(picture.iter(f"{space}rect"))
    assert {"cp <a> & b", "find, warm", "untar", "geometric mean of workloads"} <= set(texts)
    assert len(bars) == 4
    width = float(picture.get("width", "0"))
    for bar in bars:
        left, length = float(bar.get("x", "nan")), float(bar.get("width", "nan"))
        assert math.isfinite(left)
        assert 0 <= left <= left + length <= width


def test_the_chart_of_nothing_is_a_picture_too() -> None:
    ElementTree.fromstring(drawn(outcome([])))  # noqa: S314 - our own
