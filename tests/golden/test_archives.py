"""Archives of earlier versions, imported over a copy of the workspace, looked at, committed, taken back."""

import os
import shutil
from pathlib import Path

import pytest

from tests.golden.checking import HERE, agree, entries_of, load
from tests.golden.relocation import put

FILES = sorted(HERE.glob("v*/archives/*.tar*"))


@pytest.mark.parametrize("archive", FILES, ids=lambda file: f"{file.parts[-3]}-{file.name}")
def test_an_archive_of_an_earlier_version_is_imported(tmp_path: Path, archive: Path) -> None:
    beside = archive.name.split(".")[0]
    expected = load(next(archive.parent.glob(f"{beside}.json*")))
    root = tmp_path / "golden"
    put(entries_of(expected), root)
    shutil.copy(archive, root)
    agree(expected["script: import"], root, os.environ)
