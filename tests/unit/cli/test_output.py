"""What people read is short and plain."""

import os
from pathlib import Path

import pytest

from sandboxfs.cli import output
from sandboxfs.paths import counted, quoted


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size_is_shown_in_its_unit(size: int, shown: str) -> None:
    assert output.human_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0s"), (61, "1m 1s"), (3600, "1h 0m"), (90061, "1d 1h"), (59.9, "59s")]
)
def test_a_duration_is_shown_by_its_two_largest_units(seconds: float, shown: str) -> None:
    assert output.human_duration(seconds) == shown


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/srv/app", "/srv/app"),
        (b"/srv/my app", "'/srv/my app'"),
        (b"/srv/\xff", "'/srv/\\xff'"),
        (b"/srv/a\nb", "'/srv/a\\nb'"),
        (b"/srv/it's", "'/srv/it\\'s'"),
    ],
)
def test_a_path_is_shown_plainly_only_where_that_is_unambiguous(path: bytes, shown: str) -> None:
    assert output.shown(Path(os.fsdecode(path))) == shown


def test_a_quoted_path_never_breaks_the_line_or_the_quotes() -> None:
    for number in range(1, 256):
        text = quoted(bytes([47, number]))
        assert text.isprintable()
        assert text.encode()
        assert not text[1:-1].replace("\\\\", "").replace("\\'", "").count("'")


@pytest.mark.parametrize(
    ("number", "word", "written"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1, "other entry", "1 other entry"),
        (2, "entry", "2 entries"),
        (1234, "record", "1,234 records"),
    ],
)
def test_what_is_counted_is_written_with_its_plural(number: int, word: str, written: str) -> None:
    assert counted(number, word) == written
