"""Session rules on disk: kept for reviews, and never quietly forgotten."""

from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.model import Mode, Rule, RuleSource, SourceKind
from sandboxfs.state.session_rules import begin_session_rules, read_session_rules, write_session_rules

RUNTIME = RuleSource(SourceKind.RUNTIME)
RULES = (Rule("a\udcff%", Mode.HOLD, RUNTIME), Rule("b", Mode.RW, RUNTIME), Rule("c", Mode.HIDE, RUNTIME))


def test_rules_survive_being_written_and_read(tmp_path: Path) -> None:
    assert read_session_rules(tmp_path) == ()
    other = Rule("d", Mode.RO, RuleSource(SourceKind.COMMAND_LINE))
    write_session_rules(tmp_path, (*RULES, other))
    assert read_session_rules(tmp_path) == RULES


def test_only_rules_that_hold_outlast_their_session(tmp_path: Path) -> None:
    assert begin_session_rules(tmp_path) == ()
    assert not list(tmp_path.iterdir())
    write_session_rules(tmp_path, RULES)
    assert begin_session_rules(tmp_path) == RULES[:1]
    assert read_session_rules(tmp_path) == RULES[:1]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b'{"version": 2, "rules": []}', b'{"version": 1, "rules": [{"pattern": "a"}]}'],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "session-rules.json").write_bytes(content)
    with pytest.raises(UsageError, match="is damaged"):
        read_session_rules(tmp_path)
