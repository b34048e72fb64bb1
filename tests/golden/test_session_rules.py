"""Rules of a session, kept for reviews, as earlier versions wrote them."""

from pathlib import Path

import pytest

from sandboxfs.policy.model import Mode
from sandboxfs.state.session_rules import read_session_rules, write_session_rules
from tests.golden.checking import HERE

NAME = "session-rules.json"
FILES = sorted(HERE.glob("v*/session-rules/*.json"))
EXPECTED = {"two": [("./kept", Mode.HOLD), ("odd \udcff", Mode.RW)]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_rules_of_an_earlier_version_are_read_and_written_as_they_were(tmp_path: Path, file: Path) -> None:
    (tmp_path / NAME).write_bytes(file.read_bytes())
    found = read_session_rules(tmp_path)
    assert [(rule.pattern, rule.mode) for rule in found] == EXPECTED[file.stem]
    write_session_rules(tmp_path, found)
    assert (tmp_path / NAME).read_bytes() == file.read_bytes()


def test_an_example_is_there() -> None:
    assert FILES
