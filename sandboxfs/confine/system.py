"""What of the machine itself does a confined program see?

Programs and what they need to run, for reading only. Nothing of other users, no state of services, no
sockets.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Nothing can be put where these are.
IMPOSSIBLE = tuple(map(Path, ("/", "/proc", "/sys", "/dev", "/run")))
_DIRECTORIES = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/run/current-system",
)
# What only root may read in /etc, and a confined root need not.
_SECRETS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/.pwd.lock",
    "/etc/security/opasswd",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ppp/*-secrets",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/docker/*.json",
    "/etc/letsencrypt",
)
# The kernel asks only for the user's number before it lets these be changed, or shows what it holds: root's
# is root's, in whichever namespace.
_SETTINGS_OF_THE_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr")
_INSIDE_OF_THE_KERNEL = (
    *("acpi", "asound", "driver", "iomem", "ioports", "kallsyms", "kcore", "keys", "key-users", "kmsg"),
    *("kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "sched_debug", "scsi", "slabinfo"),
    *("timer_list", "timer_stats", "vmallocinfo"),
)
_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


@dataclass(frozen=True)
class System:
    """The system directories of this machine: *links* are those that are symlinks, with their targets.

    Nobody confined may read the *secret_files* and *secret_directories* in them. *kernel_settings* in /proc
    are for reading only.
    """

    directories: tuple[Path, ...]
    links: tuple[tuple[Path, str], ...] = ()
    secret_files: tuple[Path, ...] = ()
    secret_directories: tuple[Path, ...] = ()
    kernel_settings: tuple[Path, ...] = ()


def find_system(interpreter: Path | None = None) -> System:
    """Look what this machine has; *interpreter* is a further directory that must be there."""
    directories = []
    links = []
    for name in _DIRECTORIES:
        path = Path(name)
        if path.is_symlink() and path.parent == Path("/"):
            links.append((path, os.readlink(path)))  # noqa: PTH115 - as it is written
        elif path.is_dir():
            directories.append(path)
    if interpreter is not None and not _inside(interpreter, directories):
        directories.append(interpreter)
    # The kernel itself keeps them from everybody but root.
    secrets = [*_secrets_in_etc(), *_existing(_INSIDE_OF_THE_KERNEL)] if os.geteuid() == 0 else []
    return System(
        tuple(directories),
        tuple(links),
        tuple(path for path in secrets if not path.is_dir()),
        tuple(path for path in secrets if path.is_dir()),
        tuple(_existing(_SETTINGS_OF_THE_KERNEL)),
    )


def name_service(system: System) -> list[Path]:
    """The files for looking up names of the network that lie outside the *system* directories."""
    found = []
    for name in _NAMES:
        # /etc/resolv.conf is usually a link to what a service keeps below /run.
        target = Path(os.path.realpath(name))
        if target.is_file() and not _inside(target, system.directories):
            found.append(target)
    return found


def interpreter_directory() -> Path:
    """Where the Python that runs this program is installed."""
    return Path(os.path.realpath(sys.base_prefix))


def _inside(path: Path, directories: Iterable[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _secrets_in_etc() -> list[Path]:
    found = [Path(name) for pattern in _SECRETS for name in _matching(pattern)]
    return sorted(path for path in found if not path.is_symlink())


def _matching(pattern: str) -> list[str]:
    """The names that *pattern* with at most one asterisk, in its last part, stands for.

    Looked up without pathlib, whose patterns would take longer than all else that is done for a run.
    """
    directory, _, last = pattern.rpartition("/")
    start, asterisk, end = last.partition("*")
    if not asterisk:
        return [pattern] if os.path.lexists(pattern) else []
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return []
    longest = len(start) + len(end)
    return [
        f"{directory}/{name}"
        for name in names
        if len(name) >= longest and name.startswith(start) and name.endswith(end)
    ]


def _existing(names: Iterable[str]) -> list[Path]:
    return [path for path in (Path("/proc", name) for name in names) if path.exists()]
