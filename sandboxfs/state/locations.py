"""Locations of state, configuration and runtime files, and the user's home, by the environment.

`Locations` is taken from the environment once per command and passed on. Nothing here creates a file.
"""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

STATE_VARIABLE = "SANDBOXFS_STATE_DIR"
CONFIG_VARIABLE = "SANDBOXFS_CONFIG"


@dataclass(frozen=True)
class SandboxPlaces:
    """The files and directories of one sandbox."""

    home: Path

    @property
    def record(self) -> Path:
        return self.home / "sandbox.toml"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def log(self) -> Path:
        return self.home / "daemon.log"

    @property
    def responder_log(self) -> Path:
        return self.home / "responder.log"

    @property
    def responder_lock(self) -> Path:
        return self.home / "responder.lock"

    @property
    def private_home(self) -> Path:
        return self.home / "home"

    @property
    def home_lock(self) -> Path:
        return self.home / "home.lock"

    @property
    def upper(self) -> Path:
        return self.home / "roots" / "0" / "upper"

    @property
    def work(self) -> Path:
        return self.home / "roots" / "0" / "work"

    @property
    def index(self) -> Path:
        return self.home / "roots" / "0" / "index"

    @property
    def baseline(self) -> Path:
        return self.home / "baseline"

    @property
    def commits(self) -> Path:
        return self.home / "commits"

    @property
    def run_lock(self) -> Path:
        return self.home / "runs.lock"

    @property
    def review_lock(self) -> Path:
        return self.home / "review.lock"


@dataclass(frozen=True)
class Locations:
    """The directories that all sandboxes of a user share."""

    state: Path
    runtime: Path
    config: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Locations":
        """Resolve every location; an empty variable counts as unset."""
        named_state = environment.get(STATE_VARIABLE)
        state = _absolute(STATE_VARIABLE, named_state or _data(environment))
        # The real path, because the state directory is compared with workspaces, which are real paths.
        state = Path(os.path.realpath(state))
        named_config = environment.get(CONFIG_VARIABLE)
        config = _absolute(CONFIG_VARIABLE, named_config or _config(environment))
        return cls(state=state, runtime=_runtime(environment, state), config=config)

    @property
    def sandboxes(self) -> Path:
        return self.state / "sandboxes"

    @property
    def default_workspace(self) -> Path:
        return self.state / "workspace"

    def sandbox(self, name: str) -> SandboxPlaces:
        """Return the places of the sandbox called *name*, which need not exist."""
        return SandboxPlaces(self.sandboxes / name)

    def default_mountpoint(self, name: str) -> Path:
        """Return the mountpoint of the sandbox called *name* when the user names none."""
        return self.runtime / "mnt" / name


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return the user's home, resolved; it need not exist."""
    given = environment.get("HOME", "")
    if not given.startswith("/"):
        try:
            given = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            given = "/"
    return Path(os.path.realpath(given))


def _absolute(variable: str, given: str | Path) -> Path:
    try:
        return Path(given).absolute()
    except OSError as error:
        raise UsageError(f"{variable}: cannot use {quoted(given)}: the current directory is gone") from error


def _data(environment: Mapping[str, str]) -> str:
    if given := environment.get("XDG_DATA_HOME", "").strip():
        return str(Path(given, "sandboxfs"))
    # Imported late, here and below: platformdirs takes as long as half of a command's start.
    import platformdirs

    return platformdirs.user_data_dir("sandboxfs")


def _config(environment: Mapping[str, str]) -> Path:
    if given := environment.get("XDG_CONFIG_HOME", "").strip():
        return Path(given, "sandboxfs", "config.toml")
    import platformdirs

    return Path(platformdirs.user_config_dir("sandboxfs"), "config.toml")


def _runtime(environment: Mapping[str, str], state: Path) -> Path:
    given = environment.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_absolute() and os.access(given, os.W_OK | os.X_OK):
        return Path(os.path.realpath(given)) / "sandboxfs"
    return state / "run"
