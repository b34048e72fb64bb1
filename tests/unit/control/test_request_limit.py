"""The kernel's limit for requests: read as the kernel takes it, and told by `doctor` with what mends it."""

from pathlib import Path

import pytest

from sandboxfs.control.request_limit import request_limit
from sandboxfs.service.check_machine import check_waiting


@pytest.mark.parametrize(
    ("default", "most", "limit"),
    [
        (None, None, None),
        ("0\n", "0\n", None),
        ("30\n", "0\n", 30),
        ("0\n", "100\n", 100),
        ("30\n", "100\n", 30),
        ("300\n", "100\n", 100),
        ("damaged", "100\n", 100),
    ],
)
def test_the_shorter_of_the_limits_that_are_set_counts(
    tmp_path: Path, default: str | None, most: str | None, limit: float | None
) -> None:
    for name, value in (("default_request_timeout", default), ("max_request_timeout", most)):
        if value is not None:
            (tmp_path / name).write_text(value)
    assert request_limit(tmp_path) == limit


def test_a_limit_is_noted_with_what_a_person_has_left_and_what_mends_it() -> None:
    assert check_waiting(None).level == "ok"
    found = check_waiting(50)
    assert (found.check, found.level) == ("waiting", "note")
    assert "after 50 s" in found.finding
    assert "more than 40 s" in found.finding
    assert found.mend is not None
    assert "sysctl -w fs.fuse.default_request_timeout=0 fs.fuse.max_request_timeout=0" in found.mend
