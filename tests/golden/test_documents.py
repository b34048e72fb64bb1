"""The documents that commands print with `--json` about a sandbox that is served, and about a run."""

import os
from pathlib import Path

import pytest

from tests.golden.checking import HERE, agree, load
from tests.golden.live import WORKSPACE
from tests.golden.replaying import run
from tests.support.tree import build

pytestmark = [pytest.mark.mount, pytest.mark.any_user]

FILES = [file for file in sorted(HERE.glob("v*/live/*")) if not file.name.startswith("control")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.name.split('.')[0]}")
def test_commands_print_what_they_printed(tmp_path: Path, file: Path) -> None:
    root = tmp_path / "golden"
    build(root / "workspace", WORKSPACE)
    (root / "view").mkdir()
    try:
        agree(load(file)["steps"], root, os.environ)
    finally:
        # Where an answer was another one the session has not come to its end.
        run(["unmount", "@root@/view"], root, os.environ)
