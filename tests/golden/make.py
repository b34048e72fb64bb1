"""The maker of golden files: real examples of everything that this version of sandboxfs writes on disk.

    python -m tests.golden.make v2 [NAME…]

makes `tests/golden/v2` with this version of sandboxfs: all of it, or what the names say (`states`, `live`,
`records`, `archives`, `audit`, `baseline`, `settlement`, `config`). It needs FUSE. Nothing that is there is
written again: examples of earlier versions are what the tests are for. A version that writes something new
adds its examples beside the old ones, as `v2`, `v3` and so on, and the tests read them all. `config` starts
from configurations that a person has put there.
"""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.edits import operation_to_json, outcome_to_json
from tests.golden.killing import STATUS
from tests.golden.live import COMMANDS, MOUNT, REQUESTS, WORKSPACE, ask
from tests.golden.operations import OPERATIONS, OUTCOMES
from tests.golden.placing import (
    LOGS,
    NOWHERE,
    about_configs,
    about_records,
    put_audit,
    put_configs,
    put_records,
)
from tests.golden.relocation import Json, put, take
from tests.golden.replaying import DEEDS, remembered, run
from tests.golden.scenes import EXAMPLES, FEW, ODD, Example, do_little
from tests.support.drivers import HostTree
from tests.support.tree import Symlink, build

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Examples of up to so many bytes are text, larger ones are compressed.
TEXT = 10 << 10


def environment(place: Path) -> dict[str, str]:
    """What commands find: nothing of whoever makes the examples."""
    place.mkdir(exist_ok=True)
    (place / "run").mkdir(mode=0o700, exist_ok=True)
    (place / "home").mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(place / "home"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "XDG_DATA_HOME": str(place / "data"),
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_RUNTIME_DIR": str(place / "run"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "LANG": "C.UTF-8",
    }


def write(file: Path, content: bytes) -> None:
    """Write a new file; one that is there is an example of an earlier version."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "xb") as out:
        out.write(content)


def write_json(file: Path, fields: Json) -> None:
    """Write an object: what is in its lists a line each."""
    parts = []
    for key, value in fields.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(one) for one in value)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    content = ("{\n" + ",\n".join(parts) + "\n}\n").encode()
    if len(content) <= TEXT:
        write(file, content)
    else:
        write(file.with_suffix(".json.gz"), gzip.compress(content, mtime=0))
    print(f"{file.stem}: {len(content)} bytes", flush=True)


def succeed(words: Sequence[str], root: Path, home: dict[str, str], *statuses: int) -> bytes:
    done = run(words, root, home)
    assert done.returncode in (0, *statuses), (words, done.stderr.decode())
    return done.stdout


# States


def make_states(target: Path, place: Path) -> None:
    for name, example in EXAMPLES.items():
        file = target / "states" / f"{name.replace(' ', '-')}.json"
        if file.exists() or file.with_suffix(".json.gz").exists():
            continue
        home = environment(place / "environment")
        root = place / name.replace(" ", "-")
        come_about(example, root, home)
        entries = take(root)
        shutil.rmtree(root)
        scripts: Json = {}
        for title, script in example.scripts.items():
            put(entries, root)
            scripts[title] = remembered(script, root, home)
            shutil.rmtree(root)
        write_json(file, {"entries": entries, **{f"script: {title}": one for title, one in scripts.items()}})


def come_about(example: Example, root: Path, home: dict[str, str]) -> None:
    """Make the state of an example at *root*."""
    build(root / "workspace", example.tree)
    view = root / "view"
    view.mkdir()
    succeed(["mount", "--name", "golden", "@root@/workspace", "@root@/view"], root, home)
    try:
        example.change(HostTree(view))
    finally:
        succeed(["unmount", "-s", "golden"], root, home)
    for path, content in (example.meanwhile or {}).items():
        (root / "workspace" / path).write_text(content)
    for number, words in enumerate(example.then, 1):
        if words[0] == "@write":
            (root / "workspace" / words[1]).write_text(words[2])
        elif example.killed and number == len(example.then):
            kill(with_hunks(words, root, home), example.killed, root, home)
        else:
            succeed(with_hunks(words, root, home), root, home, 5)


def with_hunks(words: Sequence[str], root: Path, home: dict[str, str]) -> list[str]:
    """Name the hunks that are meant by their number."""
    if not any(word.startswith("@hunk:") for word in words):
        return list(words)
    found = json.loads(succeed(["diff", "-s", "golden", "--json"], root, home))
    ids = [hunk["id"] for change in found["changes"] for hunk in change["hunks"] if len(change["hunks"]) > 1]
    return [ids[int(word.strip("@")[5:])] if word.startswith("@hunk:") else word for word in words]


def kill(words: Sequence[str], when: tuple[str, int], root: Path, home: dict[str, str]) -> None:
    line, count = when
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.killing", line, str(count), *words],
        env={**home, "SANDBOXFS_STATE_DIR": str(root / "state")},
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == STATUS, (words, when, done.returncode, done.stderr.decode())


# Sandboxes that are served


def make_live(target: Path, place: Path) -> None:
    """The answers of commands, and of a daemon."""
    home = environment(place / "environment")
    for name, script in COMMANDS.items():
        root = place / name
        build(root / "workspace", WORKSPACE)
        (root / "view").mkdir()
        write_json(target / "live" / f"{name}.json", {"steps": remembered(script, root, home)})
    root = place / "asked"
    serve(root, home)
    try:
        write_json(target / "live" / "control.json", {"asked": ask(root, REQUESTS)})
    finally:
        succeed(["unmount", "-s", "golden"], root, home)


def serve(root: Path, home: dict[str, str]) -> None:
    """Mount a sandbox that has a record, as one that is asked to settle must."""
    build(root / "workspace", WORKSPACE)
    (root / "view").mkdir()
    succeed(MOUNT, root, home)
    (root / "state/sandboxes/golden/commits/1/upper").mkdir(parents=True)


# Records of sandboxes


def make_records(target: Path, place: Path) -> None:
    """`sandbox.toml` of sandboxes of every kind, and what commands say of them."""
    home = environment(place / "environment")
    root = place / "golden"
    build(root / "workspace", WORKSPACE)
    build(root / "beside", {"a": "a\n"})
    odd = Path(os.fsdecode(os.fsencode(root) + b"/odd \xff%"))
    build(odd, {"b": "b\n"})
    build(root / "home", {"project/c": "c\n"})
    (root / "link").symlink_to(root / "workspace")
    (root / "view").mkdir()
    (root / "config.toml").write_text('[log]\nlevel = "all"\n[[rule]]\npath = "a%b"\nmode = "deny"\n')
    for words in (
        ["mount", "--name", "plain", "@root@/workspace"],
        ["mount", "--name", "odd", str(odd), "--rule", "a=ro"],
        [
            *(
                "mount",
                "--name",
                "options",
                "--mode",
                "ro",
                "--preset",
                "workspace-write",
                "--symlinks",
                "deny",
            ),
            *(
                "--rule",
                "docs/**=ro",
                "--rule",
                "50%=hide",
                "--allow",
                "dir:rw",
                "--allow",
                "@root@/workspace/edited",
            ),
            *(
                "--rule",
                "@root@/link/gone=ro",
                "--config",
                "@root@/config.toml",
                "--read-only",
                "@root@/workspace",
                "@root@/view",
            ),
        ],
        [
            *(
                "run",
                "--confine",
                "none",
                "--workspace",
                "@root@/workspace",
                "--new",
                "--json",
                "@root@/run.json",
            ),
            *("--allow", "@root@/beside", "--allow", "@root@/config.toml:ro", "--", "sh", "-c", "echo > new"),
        ],
        ["run", "--workspace", "@root@/home/project", "--home", "cow", "--", "sh", "-c", "echo > new"],
    ):
        succeed(words, root, home)
        name = words[2] if words[1] == "--name" else "workspace"
        if words[0] == "mount":
            succeed(["unmount", "-s", name], root, home)
    for folder in sorted((root / "state/sandboxes").iterdir()):
        content = (folder / "sandbox.toml").read_bytes()
        content = content.replace(bytes(place), NOWHERE.encode())
        content = content.replace(bytes(place).hex().encode(), NOWHERE.encode().hex().encode())
        write(target / "records" / f"{folder.name}.toml", content)
    state = place / "other"
    put_records(target / "records", state)
    write_json(target / "records.json", {"steps": remembered(about_records(target / "records"), state, home)})


# Archives


def make_archives(target: Path, place: Path) -> None:
    """What `export` writes, and what `import` makes of it over a copy of the workspace."""
    home = environment(place / "environment")
    for name, file in {"changed": "everything.tar", "few": "few.tar.gz"}.items():
        # The archive tells where it comes from.
        root = Path(tempfile.gettempdir()) / "golden"
        root.mkdir()
        try:
            example = EXAMPLES["changed"] if name == "changed" else Example(FEW, do_little, {})
            come_about(example, root / "one", home)
            entries = [entry for entry in take(root / "one") if str(entry["path"]).startswith("workspace")]
            succeed(["export", f"@root@/{file}", "-s", "golden"], root / "one", home)
            archive = (root / "one" / file).read_bytes()
        finally:
            shutil.rmtree(root)
        write(target / "archives" / file, archive)
        again = place / name
        put(entries, again)
        (again / file).write_bytes(archive)
        told = {"entries": entries, "script: import": remembered(import_of(file), again, home)}
        write_json(target / "archives" / f"{file.split('.')[0]}.json", dict(told))


def import_of(file: str) -> list[list[str]]:
    box = ["-s", "again", "--json"]
    return [
        ["import", f"@root@/{file}", "@root@/workspace", "--name", "again", "--json"],
        ["diff", *box],
        ["why", "edited", "write", *box],
        ["commit", "--yes", *box],
        ["undo", "--yes", *box],
        ["diff", *box],
    ]


# The audit log


def make_audit(target: Path, place: Path) -> None:
    """A log of two sessions that has been put aside more than once, with copies and a head."""
    home = environment(place / "environment")
    root = Path(tempfile.gettempdir()) / "golden"
    root.mkdir()
    try:
        build(root / "workspace", WORKSPACE)
        (root / "view").mkdir()
        (root / "config.toml").write_text('[log]\nsize = 65536\nkeep = 2\nlevel = "all"\n')
        view = root / "view"
        for _ in range(2):
            succeed([*MOUNT, "--config", "@root@/config.toml"], root, home)
            try:
                for number in range(120):
                    os.mkdir(view / "made")
                    os.rename(view / "made", os.fsencode(view) + b"/odd \xff")
                    os.rmdir(os.fsencode(view) + b"/odd \xff")
                    if number % 60 == 0:
                        DEEDS["disobey"](HostTree(view))
                succeed(["allow", "secret", "-s", "golden"], root, home)
            finally:
                succeed(["unmount", "-s", "golden"], root, home)
        folder = root / "state/sandboxes/golden"
        names = sorted(file.name for file in folder.glob("audit.*"))
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name in [*names, "sandbox.toml"]:
                member = tarfile.TarInfo(name)
                content = (folder / name).read_bytes()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    finally:
        shutil.rmtree(root)
    write(target / "audit" / "rotated.tar.gz", gzip.compress(out.getvalue(), mtime=0))
    state = place / "state"
    put_audit(target / "audit" / "rotated.tar.gz", state)
    write_json(target / "audit" / "rotated.json", {"steps": remembered(LOGS, state, home)})


# What only the program itself can read


def make_baseline(target: Path, place: Path) -> None:
    """A log of the baseline with lines of every sort, and its pack."""
    folder, workspace = place / "baseline", place / "workspace"
    folder.mkdir()
    build(
        workspace, {"a": "first\n", "b": "second\n", "link": Symlink("a"), "dir/x": "x\n", "dir/sub/y": "y\n"}
    )
    build(workspace, {ODD: "odd\n", "empty": "", "other/z": "z\n"})
    with HostDir.at(folder) as directory, HostDir.at(workspace) as root:
        writer = BaselineWriter(directory)

        def note(path: bytes, number: int, **more: bool) -> None:
            parent, _, name = path.rpartition(b"/")
            with HostDir.at(workspace / os.fsdecode(parent)) as source:
                status = os.lstat(os.path.join(os.fsencode(workspace), path))
                writer.note(
                    path, source, name, status, number, keep=more.get("keep", False), marked="marked" in more
                )

        try:
            note(b"a", 101, keep=True)
            note(b"b", 102)
            writer.keep(b"b", root, b"b")
            note(b"link", 103)
            note(ODD, 104, keep=True, marked=True)
            for number, path in enumerate((b"dir", b"dir/x", b"dir/sub", b"dir/sub/y"), 105):
                note(path, number)
            writer.moved(b"dir", b"moved")
            note(b"other", 120)
            note(b"other/z", 121)
            writer.suspended(b"other", whole=True)
            note(b"empty", 122)
            writer.forget(b"empty")
            writer.suspended(b"a")
            writer.returned(b"a")
        finally:
            writer.close()
    with open(folder / "log", "ab") as log:
        log.write(b'no line\n{"path":"torn","mode":331')
    for name in ("log", "pack"):
        write(target / "baseline" / name, (folder / name).read_bytes())


def make_settlement(target: Path, place: Path) -> None:
    """Every operation on an upper, and every outcome."""
    del place
    write_json(
        target / "settlement.json",
        {
            "operations": [operation_to_json(operation) for operation in OPERATIONS],
            "outcomes": [outcome_to_json(outcome) for outcome in OUTCOMES],
        },
    )


def make_config(target: Path, place: Path) -> None:
    """Configurations, written by hand as people do, and what commands say of them."""
    home = environment(place / "environment")
    root = place / "golden"
    put_configs(HERE / target.name / "config", root)
    write_json(target / "config.json", {"steps": remembered(about_configs(target / "config"), root, home)})


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "states": make_states,
    "live": make_live,
    "records": make_records,
    "archives": make_archives,
    "audit": make_audit,
    "baseline": make_baseline,
    "settlement": make_settlement,
    "config": make_config,
}


def main() -> None:
    version, *names = sys.argv[1:]
    for name in names or MAKERS:
        with tempfile.TemporaryDirectory(prefix="golden-") as place:
            MAKERS[name](HERE / version, Path(place))


if __name__ == "__main__":
    main()
