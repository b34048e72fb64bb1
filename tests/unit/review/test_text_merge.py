"""Three-way merge: its laws, its markers, and git as the judge."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxfs.review.text_merge import MergeConflict, merge

line = st.sampled_from([b"a", b"b", b"c", b"d\r", b""])
texts = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(line, max_size=14), st.sampled_from([b"", b"\n"])
)
BASE = [b"line %d\n" % number for number in range(24)]
# What to do with each line of BASE: keep it, drop it, replace it, or put something in front of it.
deeds = st.dictionaries(st.integers(0, 23), st.sampled_from([b"drop", b"x\n", b"y\n", b"before"]), max_size=6)
Deeds = dict[int, bytes]


def done(deeds: Deeds) -> bytes:
    result = []
    for number, text in enumerate(BASE):
        deed = deeds.get(number)
        if deed == b"before":
            result.append(b"before %d\n" % number)
        if deed in (None, b"before"):
            result.append(text)
        elif deed != b"drop":
            result.append(b"%d is now %s" % (number, deed))
    return b"".join(result)


@given(texts, texts)
def test_side_that_changed_nothing_gives_way(base: bytes, other: bytes) -> None:
    assert merge(base, other, base).text == other
    assert merge(base, base, other).text == other
    assert merge(base, other, other).text == other
    assert merge(base, other, base).clean
    assert merge(base, base, other).clean
    assert merge(base, other, other).clean


@given(texts, texts, texts)
def test_sides_can_be_exchanged_when_the_merge_is_clean(base: bytes, ours: bytes, theirs: bytes) -> None:
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert one.clean == other.clean
    assert not one.clean or one.text == other.text


@given(texts, texts, texts)
def test_conflicts_are_where_they_say_with_the_lines_of_both_sides_in_the_text(
    base: bytes, ours: bytes, theirs: bytes
) -> None:
    merged = merge(base, ours, theirs)
    lines = merged.text.split(b"\n")
    assert [index for index, text in enumerate(lines) if text.startswith(b"<<<<<<<")] == [
        conflict.line for conflict in merged.conflicts
    ]
    for conflict in merged.conflicts:
        assert conflict.ours != conflict.theirs
        for text in (*conflict.ours, *conflict.theirs):
            assert text.rstrip(b"\r\n") in merged.text


@given(deeds, deeds)
def test_edits_with_a_line_between_them_always_merge_to_both(ours: Deeds, theirs: Deeds) -> None:
    taken = {number + offset for number in ours for offset in (-2, -1, 0, 1, 2)}
    apart = {number: deed for number, deed in theirs.items() if number not in taken}
    merged = merge(b"".join(BASE), done(ours), done(apart))
    assert merged.clean
    assert merged.text == done(ours | apart)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deeds, deeds)
def test_git_agrees_on_what_is_clean_and_on_the_clean_text(
    tmp_path: Path, ours: Deeds, theirs: Deeds
) -> None:
    sides = {"ours": done(ours), "base": b"".join(BASE), "theirs": done(theirs)}
    for name, text in sides.items():
        (tmp_path / name).write_bytes(text)
    command = ["git", "merge-file", "-p", "-L", "sandbox", "-L", "baseline", "-L", "workspace", *sides]
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    merged = merge(sides["base"], sides["ours"], sides["theirs"])
    assert merged.clean == (ended.returncode == 0)
    assert not merged.clean or merged.text == ended.stdout


def test_conflict_is_marked_with_what_both_sides_agree_on_outside() -> None:
    merged = merge(b"1\n2\n3\n", b"1\nnew\nours\n3\n", b"1\nnew\ntheirs\n3\n")
    assert merged.text == b"1\nnew\n<<<<<<< sandbox\nours\n=======\ntheirs\n>>>>>>> workspace\n3\n"
    assert merged.conflicts == (MergeConflict(2, (b"2\n",), (b"ours\n",), (b"theirs\n",)),)


def test_markers_end_as_the_text_does_and_stand_on_lines_of_their_own() -> None:
    merged = merge(b"1\r\n2", b"1\r\nours", b"1\r\ntheirs")
    assert merged.text == b"1\r\n<<<<<<< sandbox\r\nours\r\n=======\r\ntheirs\r\n>>>>>>> workspace\r\n"


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b""])
def test_clean_merge_keeps_line_ends(end: bytes) -> None:
    base = b"1\r\n2\r\n3\r\n4\r\n5" + end
    merged = merge(base, base.replace(b"1", b"one"), base.replace(b"5", b"five"))
    assert merged.text == b"one\r\n2\r\n3\r\n4\r\nfive" + end


def test_newline_added_at_the_end_by_one_side_is_kept() -> None:
    assert merge(b"1\n2\n3", b"one\n2\n3", b"1\n2\n3\n").text == b"one\n2\n3\n"


def test_changes_that_touch_are_a_conflict() -> None:
    assert not merge(b"1\n2\n", b"one\n2\n", b"1\ntwo\n").clean


def test_binary_is_never_marked() -> None:
    merged = merge(b"a\0", b"b\0", b"c\0")
    assert not merged.clean
    assert merged.binary
    assert merged.text == b"b\0"
