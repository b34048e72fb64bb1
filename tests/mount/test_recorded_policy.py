"""A sandbox is served under the options it was made with, until a person replaces them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount
from tests.support.tree import build

pytestmark = pytest.mark.any_user

RULES = ["--rule", "secret=hide", "--allow", "docs:ro", "--symlinks", "deny"]


class Desk:
    def __init__(self, place: Path) -> None:
        self.state = place / "state"
        self.workspace = build(place / "workspace", {"file": "1\n", "secret": "s\n", "docs/page": "p\n"})
        self.view = place / "view"
        self.view.mkdir()

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        return run_sandboxfs(*words, state=self.state, cwd=self.workspace)

    def done(self, *words: str | Path) -> str:
        finished = self.run(*words)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def made(self, *options: str) -> None:
        """Make a sandbox `app` with a change in it, and leave it unmounted."""
        self.done("mount", "--name", "app", *options, self.workspace, self.view)
        (self.view / "file").write_text("2\n")
        self.done("unmount", "-s", "app")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    with suppress(OSError, subprocess.SubprocessError):
        detach_mount(made.view)


def check_rules(desk: Desk) -> None:
    assert not (desk.view / "secret").exists()
    with pytest.raises(OSError, match="Read-only"):
        (desk.view / "docs/page").write_text("changed")


def test_a_mount_without_options_is_under_those_of_the_first(desk: Desk) -> None:
    desk.made(*RULES)
    desk.done("mount", "--name", "app")
    check_rules(desk)
    desk.done("unmount", "-s", "app")
    desk.done("mount", desk.workspace, desk.view)
    check_rules(desk)
    desk.done("unmount", "-s", "app")


def test_a_run_in_a_sandbox_is_under_the_options_of_its_mount(desk: Desk) -> None:
    desk.made(*RULES)
    finished = desk.run("run", "-s", "app", "--", "sh", "-c", "cat secret; echo x > docs/page")
    assert finished.returncode != 0
    assert "s\n" not in finished.stdout
    assert desk.done("diff", "--name-status", "-s", "app").split() == ["M", "file"]


def test_a_mode_and_read_only_hold_too(desk: Desk) -> None:
    desk.done("mount", "--name", "app", "--mode", "ro", "--read-only", desk.workspace, desk.view)
    desk.done("unmount", "-s", "app")
    desk.done("mount", "--name", "app")
    with pytest.raises(OSError, match="Read-only"):
        (desk.view / "file").write_text("2\n")
    desk.done("unmount", "-s", "app")


def test_the_same_options_again_are_fine(desk: Desk) -> None:
    desk.made(*RULES)
    desk.done("mount", "--name", "app", *RULES)
    check_rules(desk)
    desk.done("unmount", "-s", "app")


@pytest.mark.parametrize("options", [["--rule", "secret=rw"], ["--mode", "rw"], ["--preset", "full-access"]])
@pytest.mark.parametrize("verb", [["mount", "--name"], ["run", "-s"]], ids=["mount", "run"])
def test_options_that_differ_are_refused(desk: Desk, options: list[str], verb: list[str]) -> None:
    desk.made(*RULES)
    command = ["--", "cat", "secret"] if verb[0] == "run" else []
    finished = desk.run(*verb, "app", *options, *command)
    assert finished.returncode in (2, 125)
    assert "sandbox 'app' was made with --rule 'secret=hide' --allow" in finished.stderr
    assert "--replace-policy" in finished.stderr
    assert finished.stdout == ""


def test_a_person_can_replace_the_options(desk: Desk) -> None:
    desk.made(*RULES)
    desk.done("mount", "--name", "app", "--replace-policy", "--rule", "docs=hide")
    assert (desk.view / "secret").exists()
    assert not (desk.view / "docs").exists()
    desk.done("unmount", "-s", "app")
    desk.done("mount", "--name", "app")
    assert not (desk.view / "docs").exists()
    desk.done("unmount", "-s", "app")


def test_an_empty_sandbox_takes_the_options_that_are_given(desk: Desk) -> None:
    desk.done("mount", "--name", "app", *RULES, desk.workspace, desk.view)
    desk.done("unmount", "-s", "app")
    desk.done("mount", "--name", "app", "--rule", "docs=hide")
    assert (desk.view / "secret").exists()
    desk.done("unmount", "-s", "app")


@pytest.mark.parametrize(
    "options", [["--preset", "full-access"], ["--rule", "secret=hide"], ["--read-only"]], ids=" ".join
)
def test_a_sandbox_that_was_made_without_options_takes_none_unless_they_replace_its_policy(
    desk: Desk, options: list[str]
) -> None:
    desk.made()
    refused = desk.run("mount", "--name", "app", *options)
    assert refused.returncode == 2
    assert "sandbox 'app' was made with no options about policy" in refused.stderr
    assert "--replace-policy" in refused.stderr
    desk.done("mount", "--name", "app")
    desk.done("unmount", "-s", "app")
    desk.done("mount", "--name", "app", "--replace-policy", *options)
    desk.done("unmount", "-s", "app")
    desk.done("mount", "--name", "app", *options)
    desk.done("unmount", "-s", "app")


def test_a_run_does_not_loosen_the_sandbox_of_a_run_without_options(desk: Desk) -> None:
    desk.done("run", "sh", "-c", "echo x > file")
    loose = ("run", "--preset", "full-access", "sh", "-c", "echo x > .git/config")
    assert desk.run(*loose).returncode == 125
    assert "this run goes on in sandbox 'workspace'\n" in desk.run("run", "true").stderr
    desk.done("run", "--replace-policy", *loose[1:3], "true")
    goes_on = desk.run("run", "true").stderr
    assert "this run goes on in sandbox 'workspace', made with --preset 'full-access'\n" in goes_on


def test_a_block_with_options_does_not_take_a_sandbox_that_was_made_without(desk: Desk) -> None:
    desk.made()
    script = (
        "import sys\nfrom sandboxfs import Sandbox, UsageError\n"
        "try:\n    with Sandbox(sys.argv[1], mode='ro', resume=True): pass\n"
        "except UsageError as error:\n    print(error.hint)\n"
    )
    answered = subprocess.run(
        [sys.executable, "-c", script, desk.workspace],
        env=os.environ | {"SANDBOXFS_STATE_DIR": str(desk.state)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--replace-policy" in answered.stdout


def test_what_is_allowed_outside_the_workspace_is_asked_for_each_time(desk: Desk, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        finished = desk.run(
            "run", "--quiet", "--allow", f"{tmp_path / name}:ro", "--", "sh", "-c", "echo x > made"
        )
        assert finished.returncode == 0, finished.stderr
