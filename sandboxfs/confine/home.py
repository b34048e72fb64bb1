"""Which home does a confined program have, and what of the user's own is never shown?

`private` is an empty directory that lasts for the sandbox; `cow` is the user's own, copy-on-write, with the
places below hidden; `none` is no home at all.
"""

import os
import pwd
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from sandboxfs.policy.model import Kind, Mode, Rule, Source

NOWHERE = Path("/nonexistent")

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


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return the user's home, resolved; it need not exist."""
    given = environment.get("HOME", "")
    if not given.startswith("/"):
        try:
            given = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            given = "/"
    return Path(os.path.realpath(given))


def secret_rules(home: Path, workspace: Path) -> tuple[Rule, ...]:
    """Return the rules that hide the secret places of *home* in a view of *workspace*, as far as it has them.

    A place that is a link is hidden together with what it leads to.
    """
    # Imported here: most runs have no need for it.
    from sandboxfs.policy.sources import rule_for_path

    source = Source(Kind.USER, "--home cow")
    named = dict.fromkeys(
        spelling
        for place in SECRET_PLACES
        for spelling in (str(home / place), os.path.realpath(home / place))
        if Path(spelling).is_relative_to(workspace)
    )
    rules = (rule_for_path(spelling, Mode.HIDE, source, str(workspace)) for spelling in named)
    return tuple(rule for rule in rules if rule is not None)
