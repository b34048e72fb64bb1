"""How a plan is shown to the person who is asked about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.cli import text
from sandboxfs.cli.run_report import tell
from sandboxfs.commit.plan import Options, plan_commit, with_flags
from sandboxfs.policy.model import Policy
from sandboxfs.review.scan import survey
from sandboxfs.review.summary import FlagContext
from sandboxfs.runs.run import Change, ViewResult
from sandboxfs.service.commit import CommitPreview
from tests.support.committed import Committed
from tests.support.tree import Tree

TREE: Tree = {"mode": "1\n", "both": "1\n", "tagged": "1\n", "d/a": "1\n"}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    made = Committed(tmp_path, TREE)
    yield made
    made.abandon()


def planned(sandbox: Committed) -> CommitPreview:
    with sandbox.layers() as layers:
        plan = plan_commit(sandbox.selected(survey(layers)), Options())
        plan = with_flags(plan, FlagContext(b"/workspace", Policy()).flags)
        return CommitPreview.of(plan, "app", Path("/workspace"))


def test_every_marked_change_is_named_however_many_there_are(sandbox: Committed) -> None:
    for number in range(text.MOST + 20):
        sandbox.create(f"file{number:03}")
    sandbox.create("run.sh", mode=0o755)
    sandbox.create("z.envrc")
    sandbox.create(".envrc")
    shown = text.plan_lines(planned(sandbox), text.MOST)
    assert shown[-2:] == [
        "  … and 23 more; --dry-run shows all, with these marks among them:",
        "  A run.sh  [executable]",
    ]
    assert "  A .envrc  [runs]" in shown
    assert len(text.plan_lines(planned(sandbox))) == text.MOST + 23


def test_changes_of_mode_and_attributes_are_told_with_the_path(sandbox: Committed) -> None:
    sandbox.chmod("mode", 0o600)
    sandbox.write("both", b"2\n")
    sandbox.chmod("both", 0o666)
    sandbox.setxattr("tagged", "user.colour", b"red")
    sandbox.chmod("d", 0o700)
    preview = CommitPreview.of(sandbox.plan(), "app", Path("/workspace"))
    assert text.plan_lines(preview, text.MOST) == [
        "  M both  [mode 644 -> 666]",
        "  M d/  [mode 755 -> 700]",
        "  M mode  [mode 644 -> 600]",
        "  M tagged  [extended attributes]",
    ]


def test_a_run_names_every_marked_change_it_made(capsys: pytest.CaptureFixture[str]) -> None:
    plain = [Change("added", f"file{number:02}") for number in range(30)]
    one = ViewResult("app", Path("/workspace"), (*plain, Change("added", "run.sh", flags=("executable",))))
    tell([one], [], undecided=frozenset(), kept=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["  A run.sh  [executable]", "  … and 10 more"]
