"""Which programs does sandboxfs run itself? Never those that a workspace brings."""

from pathlib import Path

import pytest

from sandboxfs.paths import find_program


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for directory in ("workspace", "workspace/bin", "bin"):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "tool").write_text("#!/bin/sh\n")
        (tmp_path / directory / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path / "workspace")
    return tmp_path / "workspace"


@pytest.mark.parametrize("place", ["", ".", "bin", "./bin"])
def test_a_relative_place_of_the_path_is_passed_over(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("PATH", f"{place}:{workspace.parent}/bin")
    assert find_program("tool") == workspace.parent / "bin/tool"
    monkeypatch.setenv("PATH", place)
    assert find_program("tool") is None


def test_a_program_inside_the_workspace_is_passed_over_also_through_a_link(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = workspace.parent / "linked"
    linked.mkdir()
    (linked / "tool").symlink_to(workspace / "tool")
    monkeypatch.setenv("PATH", f"{workspace}/bin:{linked}:{workspace.parent}/bin")
    assert find_program("tool", besides=workspace) == workspace.parent / "bin/tool"
    assert find_program("tool") == workspace / "bin/tool"
