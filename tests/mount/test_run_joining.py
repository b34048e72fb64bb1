"""Does a run that joins another's view get what the other has, and an answer to what else it asks for?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from sandboxfs.api.sandbox import ConfineWord
from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import Tree, assert_same_tree, build, capture

MARK = "no program of these tests has a mark"
PLACES: Tree = {
    "workspace/file": "text\n",
    "library/code": "code\n",
    "elsewhere/thing": "thing\n",
    "note": "note\n",
    "second": "second\n",
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """A workspace and what is beside it, proved unchanged at the end, with nothing left of the runs."""
    top = build(tmp_path / "places", PLACES)
    before = capture(top)
    yield top
    runs.check_nothing_left(MARK)
    assert_same_tree(capture(top), before, what="the places")


def test_a_joining_run_reads_the_files_that_the_first_was_allowed(
    places: Path, confinement: ConfineWord
) -> None:
    with Sandbox(places / "workspace", allow=[f"{places}/note:ro"], confine=confinement) as sandbox:
        words = ("-s", sandbox.name, "--confine", confinement, "--", "cat", places / "note")
        assert runs.run(*words, cwd=places / "workspace").stdout == "note\n"


def test_a_joining_run_can_be_allowed_a_further_file(places: Path, confinement: ConfineWord) -> None:
    with Sandbox(places / "workspace", allow=[f"{places}/note:ro"], confine=confinement) as sandbox:
        words = ("-s", sandbox.name, "--confine", confinement, "--allow", f"{places}/second:ro", "--")
        inside = f"cat {places}/note {places}/second; echo x > {places}/second"
        done = runs.run(*words, "sh", "-c", inside, cwd=places / "workspace", status=2)
        assert done.stdout == "note\nsecond\n"


def test_a_file_that_is_gone_since_the_first_run_does_not_keep_another_from_joining(
    places: Path, tmp_path: Path
) -> None:
    passing = tmp_path / "passing"
    passing.write_text("here\n")
    with Sandbox(places / "workspace", allow=[f"{passing}:ro"]) as sandbox:
        passing.unlink()
        runs.run("-s", sandbox.name, "--", "cat", "file", cwd=places / "workspace")


def test_a_joining_run_is_allowed_no_further_file_inside_a_directory_beside(places: Path) -> None:
    runs.require("bubblewrap")
    with Sandbox(places / "workspace", allow=[f"{places}/library"]) as sandbox:
        words = ("-s", sandbox.name, "--allow", f"{places}/library/code:ro", "--", "true")
        done = runs.run(*words, cwd=places / "workspace", status=125)
        assert "is mounted already: its policy is that of its mount" in done.stderr


def test_a_joining_run_sees_the_directories_beside_and_may_name_them(places: Path) -> None:
    runs.require("bubblewrap")
    with Sandbox(places / "workspace", allow=[f"{places}/library:ro"]) as sandbox:
        words = ("-s", sandbox.name, "--allow", f"{places}/library:ro", "--")
        done = runs.run(*words, "cat", places / "library/code", cwd=places / "workspace")
        assert done.stdout == "code\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--allow", "{places}/elsewhere"), "is mounted already, without '{places}/elsewhere'"),
        (("--allow", "{places}/elsewhere:ro"), "is mounted already, without '{places}/elsewhere'"),
        (("--allow", "{places}/library"), "is mounted already, with '{places}/library' as 'ro'"),
        (("--allow", "{places}/note"), "only a directory can be allowed for writing"),
        (("--allow", "{places}/missing:ro"), "no such file or directory"),
        (("--allow", "{places}/workspace/file:ro"), "its policy is that of its mount"),
        (("--rule", "file=hide"), "its policy is that of its mount"),
        (("--mode", "ro"), "its policy is that of its mount"),
        (("--home", "cow"), "is mounted already, without "),
        (("--workspace", "{places}/elsewhere"), "is in use by a sandbox of '{places}/workspace'"),
        (("--workspace", "{places}/missing"), "is in use by a sandbox of '{places}/workspace'"),
    ],
)
def test_a_joining_run_is_refused_what_it_cannot_have(
    places: Path, words: tuple[str, ...], complaint: str
) -> None:
    with Sandbox(places / "workspace", allow=[f"{places}/library:ro"]) as sandbox:
        asked = [word.format(places=places) for word in words]
        done = runs.run("-s", sandbox.name, *asked, "--", "true", cwd=places / "workspace", status=125)
        assert complaint.format(places=places) in done.stderr


def test_a_joining_run_may_repeat_the_options_that_the_sandbox_was_made_with(
    places: Path, tmp_path: Path
) -> None:
    (tmp_path / "view").mkdir()
    workspace = places / "workspace"
    options = ("--rule", "secret*=hide", "--mode", "rw", "--allow", f"{workspace}/file:ro")
    assert run_sandboxfs("mount", "--name", "lasting", *options, workspace, tmp_path / "view").returncode == 0
    try:
        for same in (options, options[:2], ("--mode", "rw")):
            assert runs.run("-s", "lasting", *same, "--", "cat", "file", cwd=workspace).stdout == "text\n"
        for other in (("--rule", "more=ro"), (*options, "--rule", "more=ro"), ("--mode", "ro")):
            done = runs.run("-s", "lasting", *other, "--", "true", cwd=workspace, status=125)
            assert "its policy is that of its mount" in done.stderr
    finally:
        assert run_sandboxfs("unmount", "-s", "lasting").returncode == 0


def test_a_run_that_joins_a_mount_can_be_allowed_a_file(places: Path, tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    workspace = places / "workspace"
    assert run_sandboxfs("mount", "--name", "lasting", workspace, tmp_path / "view").returncode == 0
    try:
        words = ("-s", "lasting", "--allow", f"{places}/note:ro", "--", "cat", places / "note")
        assert runs.run(*words, cwd=workspace).stdout == "note\n"
    finally:
        assert run_sandboxfs("unmount", "-s", "lasting").returncode == 0


def test_a_python_program_can_allow_a_file_in_a_sandbox_that_is_mounted_already(places: Path) -> None:
    workspace = places / "workspace"
    with (
        Sandbox(workspace) as first,
        Sandbox(workspace, name=first.name, allow=[f"{places}/note:ro"]) as second,
    ):
        done = second.run(["cat", places / "note"], capture_output=True)
        assert done.stdout == "note\n"
