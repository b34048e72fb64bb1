"""The home of a confined program, and the secret places of the user's own that are never shown.

`private` is an empty directory that lasts for the sandbox; `cow` is the user's own, copy-on-write, with the
places below hidden; `none` is no home at all.
"""

import os
from enum import StrEnum
from pathlib import Path

from sandboxfs.confine.mounts import IMPOSSIBLE, System
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.model import Mode, Rule, RuleSource, SourceKind

NOWHERE = Path("/nonexistent")
_OPTIONAL = Path("/opt")
_ANOTHER = "use --home none, or set HOME to a directory of its own"

# Relative to the home. A directory stands for everything in it.
SECRET_PLACES = (
    # Keys and those who hold them
    ".ssh",
    ".gnupg",
    ".pki",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".kde/share/apps/kwallet",
    ".password-store",
    ".local/share/password-store",
    ".config/keepassxc",
    ".config/1Password",
    ".config/op",
    ".config/Bitwarden",
    ".config/Bitwarden CLI",
    ".config/sops",
    ".config/age",
    ".age",
    # Clouds and clusters
    ".aws",
    ".azure",
    ".config/gcloud",
    ".boto",
    ".s3cfg",
    ".oci",
    ".config/doctl",
    ".config/hcloud",
    ".config/rclone",
    ".kube",
    ".config/helm/registry",
    ".terraform.d",
    ".terraformrc",
    ".vault-token",
    ".config/fly",
    ".fly",
    ".config/netlify",
    ".config/vercel",
    ".local/share/com.vercel.cli",
    ".config/heroku",
    # Registries and services
    ".docker",
    ".config/containers",
    ".npmrc",
    ".config/npm",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pip",
    ".pip",
    ".config/pypoetry",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".bundle/config",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".nuget",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".cache/huggingface/token",
    ".huggingface",
    # Browsers and mail
    ".mozilla",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".cache/mozilla",
    ".cache/google-chrome",
    ".cache/chromium",
    ".thunderbird",
    ".config/evolution",
    ".local/share/evolution",
    ".config/Signal",
    ".config/Slack",
    ".config/discord",
    ".local/share/TelegramDesktop",
    ".var/app",
    "snap",
    # What was typed
    ".bash_history",
    ".zsh_history",
    ".zhistory",
    ".histfile",
    ".local/share/fish/fish_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".lesshst",
    ".viminfo",
    ".local/state/bash",
    ".local/state/zsh",
    # The session's own
    ".Xauthority",
    ".ICEauthority",
    ".dbus",
    ".config/sandboxfs",
)


class Home(StrEnum):
    """Which home a confined program has."""

    PRIVATE = "private"
    COW = "cow"
    NONE = "none"


def check_private_home(home: Path, system: System) -> None:
    """Refuse a *home* in whose place nothing can be put, or that would cover programs or what they need."""
    if home in IMPOSSIBLE or home.is_relative_to("/proc"):
        raise UsageError(f"HOME is {quoted(home)}: no home can be put there", hint=_ANOTHER)
    for directory in system.directories:
        # Whole programs, and the homes of those who run them, are installed below /opt.
        if home.is_relative_to(directory) and not (_OPTIONAL in home.parents and home.is_dir()):
            raise UsageError(
                f"HOME is {quoted(home)}: a private home there would cover a part of the system",
                hint=_ANOTHER,
            )


def check_shown_home(home: Path) -> None:
    """Refuse a *home* that cannot be shown copy-on-write."""
    if home in IMPOSSIBLE:
        raise UsageError(f"--home cow: HOME is {quoted(home)}, which cannot be shown", hint=_ANOTHER)
    if not home.is_dir():
        raise UsageError(f"--home cow: there is no directory {quoted(home)}", hint=_ANOTHER)


def secret_rules(home: Path, workspace: Path) -> tuple[Rule, ...]:
    """Return the rules that hide the secret places of *home* in a view of *workspace*, as far as it has them.

    A place that is a link is hidden together with what it leads to.
    """
    # Imported here: most runs have no need for it.
    from sandboxfs.policy.sources import rule_for_path

    named = dict.fromkeys(
        spelling
        for place in SECRET_PLACES
        for spelling in (str(home / place), os.path.realpath(home / place))
        if Path(spelling).is_relative_to(workspace)
    )
    source = RuleSource(SourceKind.USER, "--home cow")
    rules = (rule_for_path(spelling, Mode.HIDE, source, str(workspace)) for spelling in named)
    return tuple(rule for rule in rules if rule is not None)


def secrets_of_the_machine(system: System, workspace: Path) -> tuple[Rule, ...]:
    """Return the rules that hide what only root may read of *system* in a view of *workspace*."""
    secrets = (*system.secret_files, *system.secret_directories)
    inside = [str(path) for path in secrets if workspace in path.parents]
    if not inside:
        return ()
    from sandboxfs.policy.sources import rule_for_path

    source = RuleSource(SourceKind.USER, "secrets of the machine")
    rules = (rule_for_path(path, Mode.HIDE, source, str(workspace)) for path in inside)
    return tuple(rule for rule in rules if rule is not None)
