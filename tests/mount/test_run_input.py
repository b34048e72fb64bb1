"""What does a run take of its standard input?"""

import subprocess
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.tree import build

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        (["true"], "a\nb\nc\n"),
        # A shell reads no more of a pipe than the line.
        (["sh", "-c", "read more; echo and $more"], "a\nand b\nc\nand d\n"),
        (["no-such-program"], "a\nb\nc\n"),
    ],
)
def test_a_loop_over_a_file_goes_on_where_its_program_has_read_to(
    tmp_path: Path, confinement: str, program: list[str], seen: str
) -> None:
    workspace = build(tmp_path / "workspace", {})
    lines = "a\nb\nc\n" + ("d\n" if "read" in str(program) else "")
    (tmp_path / "list").write_text(lines)
    loop = 'while read line; do echo $line; "$@"; done'
    words = runs.run_words("--confine", confinement, "--quiet", "--", *program)
    with open(tmp_path / "list") as given:
        done = subprocess.run(
            ["sh", "-c", loop, "sh", *words],
            cwd=workspace,
            stdin=given,
            stdout=subprocess.PIPE,
            text=True,
            timeout=runs.PATIENCE,
            check=False,
        )
    assert done.stdout == seen
