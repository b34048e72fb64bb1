"""Who is measured, and how does each show a tree so that it can be changed?

    plain            the directory itself: a copy, put right again before each scene
    overlayfs        the kernel's own; needs root
    fuse-overlayfs   the same in user space, in C
    unionfs-fuse     an older union filesystem, in C
    sandboxfs        with the policy and audit log that everybody gets
    rules off        sandboxfs without rules, with the audit log at its least
    pyfuse3          the floor: the thinnest filesystem on it passes a copy on
    only sleeps      sandboxfs with a loop that never looks for requests without sleeping
    one waits        sandboxfs where all the while one program waits for a person's answer

The last three take part only when they are asked for.

Each mount is a new one with nothing above the tree. What was written is put aside when it ends, not removed:
for minutes after many files were removed, ext4 looks at each of their inodes before it makes a new one, and
making a file takes ten times as long. Whoever came next would pay for that.
"""

import json
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from scripts.benches.measuring import SANDBOXFS
from scripts.benches.names import (
    FUSE_OVERLAYFS,
    ONE_WAITS,
    ONLY_SLEEPS,
    OVERLAYFS,
    OWN,
    PLAIN,
    RULES_OFF,
    THINNEST,
    UNIONFS,
)
from scripts.benches.trees import refresh

USED = "used"
"""Where each competitor puts aside what it wrote."""
_MUCH_ROOM = (1 << 20) // 512
# What takes a part of sandboxfs away, done before it starts: nobody else is to find a switch for it.
WITHOUT_LOOKING = (
    "from sandboxfs.fuse.connection import RequestLoop\n"
    "RequestLoop.__init__.__kwdefaults__['processors'] = 1  # with one it never looks\n"
)
# The file that a program waits for; nobody answers within the time of any scene.
_WAITED_FOR = ".waited-for"
_PATIENT = "[ask]\ntimeout = 86400\n"
_PACKAGES = {FUSE_OVERLAYFS: "fuse-overlayfs", UNIONFS: "unionfs-fuse"}


@dataclass(frozen=True)
class View:
    """A tree as one competitor shows it."""

    path: Path
    daemon: int | None  # who serves it, if a process does
    ready_after: float  # seconds from the command to the first answer


class Competitor(Protocol):
    """One way to show a tree."""

    @property
    def name(self) -> str: ...

    def show(self, tree: Path) -> Iterator[View]:
        """Yield the tree as it is seen, once; take everything back afterwards."""


class Failed(Exception):
    """A competitor could not do what it was asked to do."""


@contextmanager
def shown(competitor: Competitor, tree: Path) -> Iterator[View]:
    yield from competitor.show(tree)


@dataclass(frozen=True)
class Plain:
    place: Path
    environment: Mapping[str, str]
    name: str = PLAIN

    def show(self, tree: Path) -> Iterator[View]:
        copy = self.place / tree.name
        mirror(tree, copy, self.place / USED)
        refresh(copy, self.environment)
        yield View(copy, None, 0.0)


@dataclass(frozen=True)
class Sandboxfs:
    place: Path
    environment: Mapping[str, str]
    name: str = OWN
    options: tuple[str, ...] = ()
    altered: str = ""  # Python that is run before anything else

    def show(self, tree: Path) -> Iterator[View]:
        """Mount the tree; see `Competitor.show`."""
        view = self.place / "view"
        view.mkdir(parents=True, exist_ok=True)
        words = ["mount", "--json", "--name", "bench", *self.options, str(tree), str(view)]
        try:
            begun = time.perf_counter()
            said = self._call(*words)
            view.stat()
            passed = time.perf_counter() - begun
            yield View(view, int(json.loads(said)["pid"]), passed)
        finally:
            if view.is_mount():
                self._call("unmount", "--wait", str(view))
            put_aside(self.place / "state", self.place / USED)

    def environ(self) -> dict[str, str]:
        return {**self.environment, "SANDBOXFS_STATE_DIR": str(self.place / "state")}

    def _call(self, *words: str) -> str:
        environment = self.environ()
        if self.altered:
            altering = self.place / "altering"
            altering.mkdir(exist_ok=True)
            # Python looks for a module of this name whenever it starts.
            (altering / "sitecustomize.py").write_text(self.altered)
            path = (str(altering), self.environment.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return _call([*SANDBOXFS, *words], environment)


@dataclass(frozen=True)
class OneWaits(Sandboxfs):
    """sandboxfs, asked for a file that a rule asks about, with somebody connected who never answers."""

    name: str = ONE_WAITS

    def show(self, tree: Path) -> Iterator[View]:
        self.place.mkdir(parents=True, exist_ok=True)
        config = self.place / "config.toml"
        config.write_text(_PATIENT)
        times = tree.stat()
        (tree / _WAITED_FOR).touch()
        patient = replace(self, options=("--config", str(config), "--ask", _WAITED_FOR))
        with ExitStack() as ending:
            for view in Sandboxfs.show(patient, tree):
                ending.enter_context(self._waiting(view.path))
                # Whoever waits for it goes on waiting, and nobody finds it in the tree.
                (tree / _WAITED_FOR).unlink()
                os.utime(tree, ns=(times.st_atime_ns, times.st_mtime_ns))
                yield view
                ending.close()

    @contextmanager
    def _waiting(self, view: Path) -> Iterator[None]:
        words = [*SANDBOXFS, "asks", "--follow", "--json", "-s", "bench"]
        with ExitStack() as ending:
            person = ending.enter_context(subprocess.Popen(words, env=self.environ(), stdout=subprocess.PIPE))
            ending.callback(person.kill)
            told = select.poll()
            told.register(person.stdout or -1, select.POLLIN)
            while not told.poll(0):
                # Until the person is connected, the program is refused at once.
                reader = ending.enter_context(
                    subprocess.Popen(["cat", view / _WAITED_FOR], stderr=subprocess.DEVNULL)
                )
                ending.callback(reader.kill)
                ended(reader.pid, seconds=0.2)
            if person.poll() is not None:
                raise Failed("nobody can be asked")
            yield


@dataclass(frozen=True)
class Thinnest:
    place: Path
    environment: Mapping[str, str]
    name: str = THINNEST

    def show(self, tree: Path) -> Iterator[View]:
        copy, view, errors = self.place / tree.name, self.place / "view", self.place / "errors"
        mirror(tree, copy, self.place / USED)
        # What git looks at is passed on as it is, so that the index is right in the view too.
        refresh(copy, self.environment)
        view.mkdir(exist_ok=True)
        words = [sys.executable, "-P", "-m", "scripts.benches.thinnest", str(copy), str(view)]
        begun = time.perf_counter()
        with errors.open("wb") as output:
            child = subprocess.Popen(
                words,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        try:
            if not child.stdout or not child.stdout.readline():
                child.wait()
                said = errors.read_text(errors="replace").splitlines()
                raise Failed(said[-1] if said else f"it ended with {child.returncode}")
            view.stat()
            yield View(view, child.pid, time.perf_counter() - begun)
        finally:
            if view.is_mount():
                unmount(view)
                ended(child.pid)
            # Only for who did not get so far, or does not end.
            child.kill()
            child.communicate()


@dataclass(frozen=True)
class Layered:
    """The three that are given a lower and an upper directory by their mount command."""

    place: Path
    environment: Mapping[str, str]
    name: str

    def show(self, tree: Path) -> Iterator[View]:
        view, upper, work = (self.place / part for part in ("view", "upper", "work"))
        for folder in (view, upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        daemon = None
        try:
            begun = time.perf_counter()
            _call(self._mount(tree, view, upper, work), self.environment)
            view.stat()
            passed = time.perf_counter() - begun
            daemon = None if self.name == OVERLAYFS else process_about(view)
            yield View(view, daemon, passed)
        finally:
            if view.is_mount():
                unmount(view)
            if daemon is not None:
                ended(daemon)
            for folder in (upper, work):
                put_aside(folder, self.place / USED)

    def _mount(self, tree: Path, view: Path, upper: Path, work: Path) -> list[str]:
        layers = f"lowerdir={tree},upperdir={upper},workdir={work}"
        if self.name == OVERLAYFS:
            # Without redirects it would copy every directory that is renamed.
            return ["mount", "-t", "overlay", "overlay", "-o", f"{layers},redirect_dir=on", str(view)]
        if self.name == FUSE_OVERLAYFS:
            return ["fuse-overlayfs", "-o", layers, str(view)]
        return ["unionfs", "-o", "cow,hide_meta_files", f"{upper}=RW:{tree}=RO", str(view)]


def everybody(place: Path, environment: Mapping[str, str]) -> list[Competitor]:
    off = ("--preset", "full-access", "--log-level", "denials")
    layered = [Layered(place / name, environment, name) for name in (OVERLAYFS, FUSE_OVERLAYFS, UNIONFS)]
    return [
        Plain(place / PLAIN, environment),
        *layered,
        Sandboxfs(place / OWN, environment),
        Sandboxfs(place / "rules-off", environment, RULES_OFF, off),
        Thinnest(place / THINNEST, environment),
        Sandboxfs(place / "only-sleeps", environment, ONLY_SLEEPS, altered=WITHOUT_LOOKING),
        OneWaits(place / "one-waits", environment),
    ]


def install_missing(names: list[str]) -> None:
    """Install the competitors that Debian has and this machine lacks, where that is allowed."""
    wanted = [_PACKAGES[name] for name in names if name in _PACKAGES and _program(name) is None]
    if not wanted or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"bench: installing {' and '.join(wanted)}, to compare with", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *wanted]
    for words in (["apt-get", "update", "-qq"], install):
        # Where it fails the competitor is left out, which is said.
        subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)


def absent(name: str) -> str | None:
    """Why a competitor cannot take part, if it cannot."""
    if name == OVERLAYFS and os.geteuid() != 0:
        return "only root may mount it"
    if name in _PACKAGES and _program(name) is None:
        return f"not installed (Debian package {_PACKAGES[name]})"
    return None


def _program(name: str) -> str | None:
    return shutil.which("unionfs" if name == UNIONFS else name)


def put_aside(path: Path, used: Path) -> None:
    """Move *path* out of the way into *used*; only what takes much room is removed."""
    if not os.path.lexists(path):
        return
    used.mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=used))
    path.rename(place / path.name)
    for folder, _, names in os.walk(place):
        for name in names:
            if Path(folder, name).lstat().st_blocks > _MUCH_ROOM:
                Path(folder, name).unlink()


def mirror(source: Path, copy: Path, used: Path) -> None:
    """Make *copy* what *source* is, touching only what differs in type, mode, size or time."""
    copy.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name: entry for entry in os.scandir(source)}
    for found in list(os.scandir(copy)):
        if found.name not in wanted or not _alike(wanted[found.name], found):
            put_aside(copy / found.name, used)
    for name, entry in wanted.items():
        if entry.is_dir(follow_symlinks=False):
            mirror(source / name, copy / name, used)
        elif not os.path.lexists(copy / name):
            # cp keeps holes, which copying in Python would fill.
            if entry.stat(follow_symlinks=False).st_size > 1 << 20:
                subprocess.run(["cp", "-a", str(source / name), str(copy / name)], check=True)
            else:
                shutil.copy2(source / name, copy / name, follow_symlinks=False)
    shutil.copystat(source, copy)


def _alike(one: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    first, second = one.stat(follow_symlinks=False), other.stat(follow_symlinks=False)
    if stat.S_ISDIR(first.st_mode):
        return first.st_mode == second.st_mode
    same = (first.st_mode, first.st_size, first.st_mtime_ns)
    return same == (second.st_mode, second.st_size, second.st_mtime_ns)


def process_about(view: Path) -> int:
    """The process that was started to serve *view*; it put itself into the background."""
    wanted = os.fsencode(view)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and not words[0].endswith(b"mount"):
            return int(folder.name)
    raise Failed(f"nobody serves {view}")


def ended(pid: int, seconds: float = 30) -> None:
    """Wait until a process is gone, so that its end disturbs nothing that is measured."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(descriptor)


def unmount(view: Path) -> None:
    """Unmount, or detach where a program that failed is not quite gone."""
    words, detach = (["umount"], ["-l"]) if os.geteuid() == 0 else (["fusermount3", "-u"], ["-z"])
    try:
        _call([*words, str(view)], os.environ)
    except Failed:
        _call([*words, *detach, str(view)], os.environ)


def sweep(place: Path) -> None:
    """Detach whatever is still mounted in *place*, the innermost first."""
    # Bytes: somebody else's mountpoint may be called anything.
    mounts = [line.split(b" ")[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    for found in reversed(mounts):
        if found.startswith(os.fsencode(f"{place}/")):
            words = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*words, found], check=False, stderr=subprocess.DEVNULL)


def _call(words: list[str], environment: Mapping[str, str]) -> str:
    """Run a command to its end, also when the bench is interrupted: half a mount would be left behind."""
    child = subprocess.Popen(
        words, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        output, errors = child.communicate()
    except BaseException:
        child.communicate()
        raise
    if child.returncode:
        said = errors.decode(errors="replace").strip() or f"{words[0]} ended with {child.returncode}"
        raise Failed(said.splitlines()[0])
    return output.decode(errors="replace")
