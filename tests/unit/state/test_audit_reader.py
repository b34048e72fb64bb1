"""Is every line of a log read once, also when files are put aside in the middle of reading?"""

from pathlib import Path

import pytest

from sandboxfs.state import audit_file, audit_reader
from sandboxfs.state.audit_file import AuditFile
from sandboxfs.state.audit_reader import read_lines


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_rotation_in_the_middle_of_opening_hides_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    log = AuditFile(tmp_path / "audit.jsonl", size_limit=100, keep=10)
    log.open()
    for number in range(4):
        log.append(b"line %d\n" % number)
        log.rotate()
    log.append(b"the last\n")
    looks = 0

    def rotating(path: Path) -> list[Path]:
        nonlocal looks
        looks += 1
        found = audit_file.kept_files(path)
        if looks == moment:
            # After the names are known, before any of them is opened.
            log.rotate()
        return found

    monkeypatch.setattr(audit_reader, "kept_files", rotating)
    texts = [line.text for line in read_lines(tmp_path / "audit.jsonl")]
    assert texts == [b"line 0", b"line 1", b"line 2", b"line 3", b"the last"]
    log.close()
