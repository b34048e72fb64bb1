"""Which environment does a confined program get?

The user's, without what looks secret and without what points to services that are out of reach. What
the user names is passed on whatever it is called.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

# Words that stand alone in the name of a variable, between underscores, or end it, perhaps with a number.
_SECRET = re.compile(
    r"(^|_)(TOKEN|TOKENS|SECRET|SECRETS|PASSWORD|PASSWORDS|PASSWD|PASSPHRASE|PASSCODE|PASS|PWD|CREDENTIAL|CREDENTIALS|"
    r"CREDS|COOKIE|DSN|KEY|KEYS|APIKEY|PAT|AUTH|JWT|BEARER)(_|\d*$)"
    r"|(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS|(API|SECRET|PRIVATE|PRIV|ACCESS|SIGNING|ENCRYPTION)KEY)\d*$"
    r"|^SSHPASS$|_SK$"
    r"|^(DATABASE|DB|REDIS|MONGO|MONGODB|POSTGRES|POSTGRESQL|MYSQL|AMQP|RABBITMQ)_UR[IL]$|CONNECTION_STRING$",
    re.IGNORECASE,
)
# An address with a user's password in it, as those of proxies and package registries are.
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^/?#\s]*:[^/?#\s]+@")
# Called like secrets, and none.
_HARMLESS = re.compile(r"PWD|OLDPWD|SSH_AUTH_SOCK|GIT_CONFIG_KEY_\d+")

# Sockets and places of the session, of no use to a program that cannot reach them.
_OUT_OF_REACH = (
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DESKTOP_STARTUP_ID",
    "DISPLAY",
    "DOCKER_HOST",
    "GNOME_KEYRING_CONTROL",
    "GPG_AGENT_INFO",
    "I3SOCK",
    "ICEAUTHORITY",
    "NOTIFY_SOCKET",
    "PULSE_SERVER",
    "SESSION_MANAGER",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "SWAYSOCK",
    "TMPDIR",
    "TMUX",
    "TMUX_PANE",
    "VSCODE_IPC_HOOK_CLI",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
)
_OUR_OWN = "SANDBOXFS"
# Before the name of a variable: its value for `--env NAME`, where it must not be that of sandboxfs itself.
GIVEN = f"{_OUR_OWN}_ENV_"


@dataclass(frozen=True)
class Environment:
    """What the program gets, and the names of what it does not because it looks secret."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()


def is_secret(name: str, value: str = "") -> bool:
    """Say whether a variable holds a secret, going by its *name*, or by an address with a password in it."""
    if _ADDRESS_WITH_PASSWORD.search(value):
        return True
    return _SECRET.search(name) is not None and not _HARMLESS.fullmatch(name)


def parse_assignment(text: str) -> tuple[str, str | None]:
    """Read `NAME` or `NAME=VALUE`, as `--env` takes it."""
    name, equals, value = text.partition("=")
    if not name or "\0" in text:
        raise UsageError(f"--env {quoted(text)}: expected NAME or NAME=VALUE")
    return name, value if equals else None


def named_values(host: Mapping[str, str], named: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the *named* variables, with the *host*'s value where they have none of their own."""
    wanted: dict[str, str] = {}
    for name, value in named:
        found = host.get(f"{GIVEN}{name}", host.get(name)) if value is None else value
        if found is None:
            raise UsageError(f"--env {name}: there is no such variable")
        wanted[name] = found
    return wanted


def environment_for(
    host: Mapping[str, str],
    named: Iterable[tuple[str, str | None]],
    added: Mapping[str, str],
    *,
    clear: bool,
) -> Environment:
    """Make a program's environment out of the *host*'s.

    *named* variables are passed on, or set where they have a value; one that the host lacks is an error.
    *added* are those that sandboxfs itself sets, which nothing overrides. With *clear* of the rest only what
    every program needs stays.
    """
    wanted = named_values(host, named)
    withheld = []
    kept: dict[str, str] = {}
    for name, value in host.items():
        if clear and name not in _NEEDED and not name.startswith("LC_"):
            continue
        if name in _OUT_OF_REACH or name == _OUR_OWN or name.startswith(f"{_OUR_OWN}_"):
            continue
        if is_secret(name, value):
            if name not in wanted:
                withheld.append(name)
            continue
        kept[name] = value
    return Environment(kept | wanted | dict(added), tuple(sorted(withheld)))


_NEEDED = frozenset({"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"})
