"""The environment decides where things are kept."""

from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.state.locations import Locations, home_directory


def test_the_state_directory_can_be_named_and_is_made_absolute_and_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    locations = Locations.from_environment({"SANDBOXFS_STATE_DIR": "alias/state"})
    assert locations.state == tmp_path / "real" / "state"
    assert locations.sandbox("app").upper == tmp_path / "real/state/sandboxes/app/roots/0/upper"


def test_without_a_name_the_users_own_directories_are_used(tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    locations = Locations.from_environment(environment | {"SANDBOXFS_STATE_DIR": "", "SANDBOXFS_CONFIG": ""})
    assert locations.state == tmp_path / "data" / "sandboxfs"
    assert locations.default_workspace == tmp_path / "data" / "sandboxfs" / "workspace"
    assert locations.config == tmp_path / "config" / "sandboxfs" / "config.toml"


@pytest.mark.parametrize("environment", [{}, {"XDG_DATA_HOME": "", "XDG_CONFIG_HOME": " "}])
def test_without_any_name_they_are_below_the_home(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    locations = Locations.from_environment(environment)
    assert locations.state == tmp_path / ".local/share/sandboxfs"
    assert locations.config == tmp_path / ".config/sandboxfs/config.toml"


def test_mountpoints_are_made_in_the_runtime_directory_when_there_is_one(tmp_path: Path) -> None:
    environment = {"SANDBOXFS_STATE_DIR": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    locations = Locations.from_environment(environment)
    assert locations.default_mountpoint("app") == tmp_path / "sandboxfs" / "mnt" / "app"


@pytest.mark.parametrize("runtime", ["", "relative", "/nowhere/at/all"])
def test_mountpoints_are_made_in_the_state_directory_when_the_runtime_directory_is_of_no_use(
    tmp_path: Path, runtime: str
) -> None:
    environment = {"SANDBOXFS_STATE_DIR": str(tmp_path / "state"), "XDG_RUNTIME_DIR": runtime}
    locations = Locations.from_environment(environment)
    assert locations.default_mountpoint("app") == tmp_path / "state" / "run" / "mnt" / "app"


@pytest.mark.parametrize("variable", ["SANDBOXFS_STATE_DIR", "SANDBOXFS_CONFIG"])
def test_a_relative_place_without_a_current_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match=f"{variable}: .* the current directory is gone"):
        Locations.from_environment({"HOME": str(tmp_path), variable: "place"})


def test_the_home_is_that_of_the_environment_or_of_the_user(tmp_path: Path) -> None:
    assert home_directory({"HOME": str(tmp_path)}) == tmp_path
    assert home_directory({"HOME": "relative"}).is_absolute()
    assert home_directory({}).is_absolute()
