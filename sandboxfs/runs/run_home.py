"""The home of a run's programs: mount destinations in a private home, and what of the user's own stands in.

Bubblewrap makes missing mount destinations by path and follows symlinks on the way. The private home lasts
from run to run and programs write in it, so a symlink of an earlier program could lead bubblewrap anywhere on
the host. Therefore:

- each destination inside the home is made here, name by name, before bubblewrap starts; whatever is no real
  directory on the way is moved aside;
- each directory on the way is a mount of its own in every run (`HomeMounts.kept`): no program can rename or
  remove a mountpoint of its own namespace;
- runs that use the home at the same time hold a shared lock on a list of the destinations, and every one of
  them keeps all of the list in place; a destination that is not on the list is refused meanwhile. A run that
  is alone adds one while its program runs (`widening`), and no other begins before that is in place.

The user's git name and address, and a mark in the prompt of a shell, come as files and variables beside it.
"""

import os
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fcntl import (
    F_OFD_SETLK,
    F_OFD_SETLKW,
    F_RDLCK,
    F_WRLCK,
    LOCK_EX,
    LOCK_NB,
    LOCK_SH,
    fcntl,
    flock,
)
from pathlib import Path, PurePath

from sandboxfs.errors import MountFailed, SandboxBusy
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import find_program, quoted
from sandboxfs.state.lock import read_destinations

# A name moved aside gets this and random digits; names have 255 bytes at most.
_ASIDE = b".aside-"
_LONGEST = 230


@dataclass(frozen=True)
class HomeMounts:
    """A private home in use: *kept* are the paths in it that must be mounts, *aside* what had to give way.

    The home is in use until each copy of the descriptor *lock* is closed.
    """

    lock: int
    kept: tuple[PurePath, ...] = ()
    aside: tuple[tuple[PurePath, PurePath], ...] = ()


def hold_home(lock: Path, home: Path, wanted: Mapping[PurePath, bool], *, keeps: bool) -> HomeMounts:
    """Use the private home at *home*, with the mount destinations *wanted*, relative to it.

    Each is mapped to whether it is a directory. A confinement that *keeps* nothing in place mounts nothing
    either. Raises `SandboxBusy` when another run uses the home and does not keep these in place.
    """
    try:
        return _hold(lock, home, wanted, keeps=keeps)
    except OSError as error:
        from sandboxfs.service.review_session import free_hint

        message = f"cannot prepare the sandbox's home {quoted(home)}: {error.strerror}"
        raise MountFailed(message, hint=free_hint(error)) from error


def _hold(lock: Path, home: Path, wanted: Mapping[PurePath, bool], *, keeps: bool) -> HomeMounts:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        aside: tuple[tuple[PurePath, PurePath], ...] = ()
        if _alone(descriptor):
            _write_list(descriptor, wanted)
            aside = _prepare(home, wanted)
        # Another run may come between the two locks: what it wrote and prepared holds for this one too.
        flock(descriptor, LOCK_SH)
        _lock_alone(descriptor, F_RDLCK, F_OFD_SETLKW)
        listed = read_destinations(descriptor)
        _check(wanted, listed, keeps=keeps)
    except BaseException:
        os.close(descriptor)
        raise
    parents = {parent for path in listed for parent in _above(path)}
    kept = (parents | set(listed)) - set(wanted)
    return HomeMounts(descriptor, tuple(sorted(kept, key=lambda path: len(path.parts))), aside)


def _alone(descriptor: int) -> bool:
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_alone(descriptor: int, kind: int, how: int) -> None:
    """Take the second lock on the list, which is for one run alone while it adds a destination.

    Unlike the first, it goes from shared to exclusive and back without being lost on the way.
    """
    fcntl(descriptor, how, struct.pack("@hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


def hold_home_alone(lock: int, home: Path) -> None:
    """Keep other runs from beginning to use the home at *home*, whose descriptor is *lock*.

    Raises `SandboxBusy` when one uses it already: its programs could rename what is on the way to a mount.
    """
    try:
        _lock_alone(lock, F_WRLCK, F_OFD_SETLK)
    except BlockingIOError:
        raise SandboxBusy(
            f"another run uses this sandbox's home, {quoted(home)}",
            hint="wait for the other to end, or name the directory with --allow in the first run",
        ) from None


def share_home(lock: int, added: PurePath | None = None) -> None:
    """Let other runs use the home again; *added* is a destination that is mounted there from now on."""
    if added is not None and added not in read_destinations(lock):
        os.pwrite(lock, os.fsencode(added) + b"\0", os.fstat(lock).st_size)
    _lock_alone(lock, F_RDLCK, F_OFD_SETLK)


def _check(wanted: Iterable[PurePath], listed: Iterable[PurePath], *, keeps: bool) -> None:
    in_place = {path for one in listed for path in (one, *_above(one))}
    if in_place and not keeps:
        raise SandboxBusy(
            "another run uses this sandbox's home and has mounts in it, which Landlock cannot keep in place",
            hint="use --confine bubblewrap, another sandbox (--new), or wait for the other to end",
        )
    for path in wanted:
        if path not in in_place:
            raise SandboxBusy(
                f"another run uses this sandbox's home, without {quoted(path)} mounted in it",
                hint="ask for it in the first run, use another sandbox (--new), or wait for the other to end",
            )


def _above(path: PurePath) -> list[PurePath]:
    """The directories from the home, without it, down to *path*, without it."""
    return [parent for parent in path.parents if parent.parts]


# The list


def _write_list(descriptor: int, destinations: Iterable[PurePath]) -> None:
    text = b"".join(os.fsencode(path) + b"\0" for path in destinations)
    os.ftruncate(descriptor, 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text)


# Making destinations


def _prepare(home: Path, destinations: Mapping[PurePath, bool]) -> tuple[tuple[PurePath, PurePath], ...]:
    """Make every destination; return what was in the way, with the names that it has now."""
    aside: list[tuple[PurePath, PurePath]] = []
    with HostDir.at(home) as top:
        _open_up(top, top.own_stat())
        for path, is_directory in destinations.items():
            here = top.child(b".")
            for above in reversed(_above(path)):
                here = _directory(here, above, aside)
            if is_directory:
                _directory(here, path, aside)
            else:
                _file(here, path, aside)
    return tuple(aside)


def _directory(parent: HostDir, path: PurePath, aside: list[tuple[PurePath, PurePath]]) -> HostDir:
    encoded = os.fsencode(path.name)
    status = parent.stat(encoded)
    if status is not None and not stat.S_ISDIR(status.st_mode):
        aside.append((path, path.with_name(_move_aside(parent, encoded))))
        status = None
    if status is None:
        parent.mkdir(encoded, 0o700)
    made = parent.child(encoded)
    if status is not None:
        _open_up(made, status)
    return made


def _open_up(directory: HostDir, status: os.stat_result) -> None:
    """Give back what a program took away from its own directory: without it nothing can be mounted below."""
    if status.st_mode & 0o700 != 0o700:
        directory.chmod_own(status.st_mode | 0o700)


def _file(parent: HostDir, path: PurePath, aside: list[tuple[PurePath, PurePath]]) -> None:
    encoded = os.fsencode(path.name)
    status = parent.stat(encoded)
    if status is not None and not stat.S_ISREG(status.st_mode):
        aside.append((path, path.with_name(_move_aside(parent, encoded))))
        status = None
    if status is None:
        os.close(parent.open(encoded, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _move_aside(parent: HostDir, name: bytes) -> str:
    """Give what is called *name* another name, which is returned."""
    while True:
        free = name[:_LONGEST] + _ASIDE + os.urandom(4).hex().encode()
        try:
            parent.move(name, parent, free)
        except FileExistsError:
            continue
        return os.fsdecode(free)


# What stands in for the user's own files

_SYSTEM_WIDE = ("GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_OF_GIT = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL")


@dataclass(frozen=True)
class RunFiles:
    """The *command* to run, the *variables* it gets unless they are set, and *files* by their names."""

    command: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def with_identity(given: RunFiles, place: Path, environment: Mapping[str, str], workspace: Path) -> RunFiles:
    """Add the user's git name and address, as the system-wide configuration of git at *place*.

    What a repository says, or the program's own home, goes before it. The machine's own configuration is
    included. Nothing is added where *environment* names another one.
    """
    if any(name in environment for name in _SYSTEM_WIDE):
        return given
    identity = _identity(environment, workspace)
    if not identity:
        return given
    lines = [b"[include]", b"\tpath = /etc/gitconfig", b"[user]"]
    lines += [b"\t%s = %s" % (name, _git_text(value)) for name, value in identity.items()]
    return replace(
        given,
        variables={**given.variables, "GIT_CONFIG_SYSTEM": str(place / "gitconfig")},
        files={**given.files, "gitconfig": b"\n".join(lines) + b"\n"},
    )


def _identity(environment: Mapping[str, str], workspace: Path) -> dict[bytes, bytes]:
    """The user's own `name` and `email`, as far as git knows them for a repository at *workspace*."""
    own = {name: environment[name] for name in _OF_GIT if environment.get(name)}
    home, settings = own.get("HOME", ""), own.get("XDG_CONFIG_HOME", "")
    files = [
        own.get("GIT_CONFIG_GLOBAL", f"{home}/.gitconfig"),
        f"{settings or home + '/.config'}/git/config",
    ]
    git = find_program("git", besides=workspace)
    if git is None or not any(map(os.path.exists, files)):
        return {}
    words = ("config", "--global", "--includes", "-z", "--get-regexp", r"^user\.(name|email)$")
    answer = _output([str(git), "-C", str(workspace), *words], own)
    found = (entry.partition(b"\n") for entry in answer.split(b"\0") if entry)
    return {key.partition(b".")[2]: value for key, _, value in found}


def _output(command: list[str], environment: Mapping[str, str]) -> bytes:
    """What *command* writes. Without the module for it, which takes longer to import than git to answer."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    with open(reading, "rb") as stream:  # noqa: PTH123 - it has no name
        try:
            pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        except OSError:
            return b""
        finally:
            os.close(writing)
        text = stream.read()
    os.waitpid(pid, 0)
    return text


def _git_text(value: bytes) -> bytes:
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t")):
        value = value.replace(plain, escaped)
    return b'"' + value + b'"'


# sandboxfs, which may be out of reach inside
STAND_IN = "sandboxfs"
_STAND_IN = r"""#!/bin/sh
# Stands in for sandboxfs, which is out of reach in this run or has no business in it.
name='@'
top=$PWD
while [ ! -e "$top/.sandboxfs/policy" ] && [ -n "$top" ]; do top=${top%/*}; done
[ -e "$top/.sandboxfs/policy" ] || top=
fail() {
    echo "sandboxfs: $1" >&2
    exit 2
}
escaped() {
    printf %s "$1" | LC_ALL=C sed 's/[\\"]/\\&/g'
}
request() {
    path= mode=rw reason= wait=1 json=
    while [ $# -gt 0 ]; do
        case $1 in
        --reason) [ $# -gt 1 ] || fail "--reason needs a text"; reason=$2; shift ;;
        --reason=*) reason=${1#*=} ;;
        --no-wait) wait= ;;
        --json) json=1 ;;
        -*) fail "request knows no option '$1'" ;;
        *) if [ -z "$path" ]; then path=$1; else mode=$1; fi ;;
        esac
        shift
    done
    [ -n "$path" ] || fail "usage: sandboxfs request PATH [ro|rw] [--reason TEXT] [--no-wait] [--json]"
    case $path in /*) ;; *) path=$PWD/$path ;; esac
    path=$(realpath -ms -- "$path" 2>/dev/null || printf %s "$path")
    control=${SANDBOXFS_VIEW:-$top}/.sandboxfs
    [ -e "$control/request" ] || fail "nothing can be asked for here: there is no $control/request"
    line="{\"path\": \"$(escaped "$path")\", \"mode\": \"$(escaped "$mode")\""
    [ -z "$reason" ] || line="$line, \"reason\": \"$(escaped "$reason")\""
    exec 3<>"$control/request" || exit 2
    printf '%s}\n' "$line" >&3 || fail "the request makes no sense, or there are too many of them"
    IFS= read -r answer <&3
    id=${answer#*\"id\": } id=${id%%,*}
    case $answer in
    *'"state": "waiting"'* | *'"state": "allowed"'*) [ -z "$wait" ] || answer=$(cat "$control/answers/$id") ;;
    esac
    state=${answer#*\"state\": \"} state=${state%%\"*}
    [ -z "$json" ] || echo "{\"version\": 1, ${answer#?}"
    case $state in
    granted) [ -n "$json" ] || echo "granted: $path ($mode)" ;;
    waiting | allowed) [ -n "$json" ] || echo "request $id waits for a person: $control/answers/$id" ;;
    *)
        why=$(printf %s "$answer" | sed -n 's/.*"reason": "\(.*\)", "retry".*/\1/p')
        [ -n "$json" ] || echo "sandboxfs: refused ($state)${why:+: $why}" >&2
        exit 1
        ;;
    esac
    exit 0
}
case ${1-status} in
status | help | -h | --help) ;;
request)
    shift
    request "$@"
    ;;
*)
    echo "sandboxfs: you are inside sandbox '$name', where 'sandboxfs $1' cannot work" >&2
    case $1 in run | shell) exit 125 ;; esac
    echo "hint: 'sandboxfs status' says what can be read here, 'sandboxfs request' asks for a directory;" \
        "all else is done outside" >&2
    exit 2
    ;;
esac
network=true
[ -z "${SANDBOXFS_NETWORK_DISABLED+set}" ] || network=false
case " $* " in
*" --json "*)
    place=$(printf %s "$top" | sed 's/[\\"]/\\&/g')
    files=
    [ -z "$top" ] || for word in changes denials policy; do
        files="$files${files:+, }\"$word\": \"$place/.sandboxfs/$word\""
    done
    echo "{\"version\": 1, \"inside\": \"$name\", \"network\": $network, \"files\": {$files}}"
    exit 0
    ;;
esac
case $network in true) network=on ;; *) network=off ;; esac
echo "you are inside sandbox '$name'; the network is $network"
if [ -n "$top" ]; then
    echo "$top/.sandboxfs/changes: what has changed so far"
    echo "$top/.sandboxfs/denials: what was refused"
    echo "$top/.sandboxfs/policy: the rules in force"
else
    echo "the top directory of the workspace has, in .sandboxfs/: changes, denials, policy"
fi
"""


def with_stand_in(given: RunFiles, name: str) -> RunFiles:
    """Add a `sandboxfs` that tells where one is; the real one goes before it where it is found."""
    return replace(given, files={**given.files, STAND_IN: _STAND_IN.replace("@", name, 1).encode()})


def searched_last(path: str | None, place: Path) -> str:
    """The `PATH` *path* with *place* at its end."""
    searched = os.defpath if path is None else path
    return f"{searched}:{place}" if searched else str(place)


_BASH = """\
[ ! -r ~/.bashrc ] || . ~/.bashrc
__sandboxfs_mark() { case $PS1 in "$1"*) ;; *) PS1=$1$PS1 ;; esac; }
case $(declare -p PROMPT_COMMAND 2>/dev/null) in
"declare -a"*) PROMPT_COMMAND+=("__sandboxfs_mark '@'") ;;
*) PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND
}__sandboxfs_mark '@'" ;;
esac
"""
_ZSH_ENVIRONMENT = """\
__sandboxfs_given=$ZDOTDIR
unset ZDOTDIR
[[ ! -r ~/.zshenv ]] || . ~/.zshenv
__sandboxfs_own=${ZDOTDIR:-$HOME}
ZDOTDIR=$__sandboxfs_given
"""
_ZSH = """\
ZDOTDIR=$__sandboxfs_own
[[ ! -r $ZDOTDIR/.zshrc ]] || . $ZDOTDIR/.zshrc
__sandboxfs_mark() { [[ $PROMPT == '@'* ]] || PROMPT='@'$PROMPT }
precmd_functions+=(__sandboxfs_mark)
"""
_FISH = "functions -c fish_prompt __own_prompt; function fish_prompt; echo -n '@'; __own_prompt; end"


def with_mark(given: RunFiles, place: Path | None, name: str) -> RunFiles:
    """Have the prompt of the shell that is to run say that it is in the sandbox called *name*.

    The shell reads the user's own start-up files first. *place* is where it finds files, if it can.
    """
    mark = f"[sandbox {name}] "
    shell = PurePath(given.command[0]).name
    command, variables, files = given.command, dict(given.variables), dict(given.files)
    if shell == "bash" and place is not None:
        command = [*command, "--rcfile", str(place / "bashrc")]
        files["bashrc"] = _BASH.replace("@", mark).encode()
    elif shell == "zsh" and place is not None:
        variables["ZDOTDIR"] = str(place)
        files |= {".zshenv": _ZSH_ENVIRONMENT.encode(), ".zshrc": _ZSH.replace("@", mark).encode()}
    elif shell == "fish":
        command = [*command, "--init-command", _FISH.replace("@", mark)]
    else:
        variables["PS1"] = mark + ("# " if os.geteuid() == 0 else "$ ")
    return RunFiles(command, variables, files)
