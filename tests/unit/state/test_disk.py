"""Trees are measured and emptied without following anything."""

import os
from pathlib import Path

from sandboxfs.state.disk import empty_directory, is_empty, measure_tree, remove_tree


def test_a_tree_is_measured_by_the_blocks_it_takes_and_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_bytes(b"x" * 100_000)
    before = measure_tree(tmp_path)
    os.link(tmp_path / "d" / "file", tmp_path / "again")
    after = measure_tree(tmp_path)
    assert before.size >= 100_000
    assert after.size == before.size
    assert (before.entries, after.entries) == (2, 3)
    assert after.complete


def test_measuring_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    assert measure_tree(tmp_path).entries == 1


def test_measuring_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).touch()
    size = measure_tree(tmp_path, limit=4)
    assert size.entries == 4
    assert not size.complete


def test_a_missing_tree_is_empty_and_measured_incompletely(tmp_path: Path) -> None:
    assert is_empty(tmp_path / "nowhere")
    assert not measure_tree(tmp_path / "nowhere").complete
    remove_tree(tmp_path / "nowhere")


def test_emptying_keeps_the_directory_itself(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert not is_empty(tmp_path)
    empty_directory(tmp_path)
    assert is_empty(tmp_path)


def test_removing_a_link_removes_the_link(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    remove_tree(tmp_path / "link")
    assert os.listdir(tmp_path) == ["target"]
