"""The examples of docs/python.md, run one after the other, and what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.tree import build

pytestmark = pytest.mark.any_user

PAGE = Path(__file__).parents[2] / "docs/python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PRINTED = [
    "A build/out\nM src/main\n",
    "trial {home}/projects/app unmounted\n['made']\n",
    "migrations/0001.sql {'rule': 'migrations = hold', 'source': '--rule', 'waits_for': None}\nnotes None\n"
    "['migrations/0001.sql']\n",
    "read .env for cat\nread .env.local for cat\nSECRET=1\nSECRET=1\n\n.env.local use config.example\n"
    "allow path .env 2\n",
    ".env ['.env']\nallowed\nb'SECRET=1\\n'\n",
    "b'got one\\n'\n0\n137\n",
    "[b'one\\n', b'two\\n']\nended\n",
]


def test_the_examples_of_the_page_run_as_it_says() -> None:
    home = Path(os.environ["HOME"])
    makefile = "test:\n\tmkdir build && cp src/main build/out && echo more >> src/main\n"
    workspace = build(
        home / "projects/app",
        {"Makefile": makefile, "src/main": "text\n", ".env": "SECRET=1\n", ".env.local": ""},
    )
    assert len(EXAMPLES) == len(PRINTED)
    for number, (example, printed) in enumerate(zip(EXAMPLES, PRINTED, strict=True)):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            capture_output=True,
            text=True,
            check=False,
            timeout=runs.PATIENCE,
            cwd=home,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == printed.replace("{home}", str(home)), example
        if number == 0:
            assert (workspace / "src/main").read_text() == "text\nmore\n"
            assert not (workspace / "build").exists()
            subprocess.run([sys.executable, "-m", "sandboxfs", "rm", "--force", "app"], check=True)
    runs.check_nothing_left("no-such-mark")
