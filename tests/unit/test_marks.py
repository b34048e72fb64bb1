"""Do the marks of the tests say what is true of them?"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# What makes a test depend on the user who runs it.
DEPENDS = re.compile(r"geteuid|\.forget\(|require_root|chown|setpriv|65534")

FILES = [path for path in TESTS.rglob("test_*.py") if "pytest.mark.any_user" in path.read_text()]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path != Path(__file__)], ids=lambda path: path.stem
)
def test_what_is_run_by_any_user_asks_for_none(path: Path) -> None:
    assert not DEPENDS.findall(path.read_text())
