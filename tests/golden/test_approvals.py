"""Approvals of held changes, as earlier versions wrote them."""

from pathlib import Path

import pytest

from sandboxfs.state.approvals import read_approvals, write_approvals
from tests.golden.checking import HERE

FILES = sorted(HERE.glob("v*/approvals/*.json"))
EXPECTED = {
    "two": {
        b"src/a.py": frozenset({"0f" * 32}),
        b"odd \xff\n": frozenset({"1e" * 32, "2d" * 32}),
    }
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_approvals_of_an_earlier_version_are_read_and_written_as_they_were(
    tmp_path: Path, file: Path
) -> None:
    (tmp_path / "approvals.json").write_bytes(file.read_bytes())
    found = read_approvals(tmp_path)
    assert found == EXPECTED[file.stem]
    write_approvals(tmp_path, found)
    assert (tmp_path / "approvals.json").read_bytes() == file.read_bytes()


def test_there_is_an_example() -> None:
    assert FILES
