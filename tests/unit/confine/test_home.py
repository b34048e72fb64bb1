"""Which places of a home are hidden?"""

from pathlib import Path

import pytest

from sandboxfs.confine.home import SECRET_PLACES, check_private_home, check_shown_home, secret_rules
from sandboxfs.confine.mounts import System
from sandboxfs.errors import UsageError
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import Mode, Policy


def hidden(policy: Policy, path: str, root: Path) -> bool:
    return decide(policy, path, root=str(root)).mode is Mode.HIDE


def test_every_secret_place_is_hidden_with_what_is_in_it(tmp_path: Path) -> None:
    policy = Policy(secret_rules(tmp_path, tmp_path))
    for place in SECRET_PLACES:
        assert hidden(policy, place, tmp_path)
        assert hidden(policy, f"{place}/inner", tmp_path)
    for place in (
        ".bashrc",
        ".config/git/config",
        ".gitconfig",
        ".sshrc",
        "projects/.ssh.txt",
        ".claude.json",
    ):
        assert not hidden(policy, place, tmp_path)


def test_they_are_hidden_in_a_workspace_around_the_home(tmp_path: Path) -> None:
    policy = Policy(secret_rules(tmp_path / "home/u", tmp_path))
    assert hidden(policy, "home/u/.ssh/id", tmp_path)
    assert not hidden(policy, ".ssh/id", tmp_path)


def test_a_workspace_inside_the_home_has_none_of_them(tmp_path: Path) -> None:
    assert secret_rules(tmp_path, tmp_path / "projects") == ()


def test_a_secret_place_that_is_a_link_is_hidden_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "dotfiles/aws").mkdir(parents=True)
    (tmp_path / ".aws").symlink_to("dotfiles/aws")
    policy = Policy(secret_rules(tmp_path, tmp_path))
    assert hidden(policy, ".aws", tmp_path)
    assert hidden(policy, "dotfiles/aws/credentials", tmp_path)


@pytest.mark.parametrize(
    "home", ["/", "/proc", "/proc/1", "/sys", "/dev", "/run", "/usr", "/etc", "/usr/sbin"]
)
def test_a_private_home_covers_nothing_of_the_system(home: str) -> None:
    with pytest.raises(UsageError, match=f"HOME is '{home}'") as refused:
        check_private_home(Path(home), System((Path("/usr"), Path("/etc"))))
    assert "--home none" in str(refused.value.hint)


@pytest.mark.parametrize("home", ["/root", "/home/u", "/nonexistent", "/var/lib/u", "/dev/shm/u", "/tmp"])
def test_a_private_home_may_be_anywhere_else(home: str) -> None:
    # As where an interpreter in the home is a part of the system.
    check_private_home(Path(home), System((Path("/usr"), Path("/home/u/.local/share/python"))))


def test_a_home_of_a_program_below_opt_must_be_there() -> None:
    with pytest.raises(UsageError, match="cover"):
        check_private_home(Path("/opt/no-such-program"), System((Path("/opt"),)))


@pytest.mark.parametrize("home", ["/", "/dev", "/no/such/directory"])
def test_a_home_that_cannot_be_shown_is_refused(home: str) -> None:
    with pytest.raises(UsageError, match="--home cow"):
        check_shown_home(Path(home))
