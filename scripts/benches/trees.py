"""On which trees is measured? The workspaces, made the same every time.

    project   a repository of 7,000 files with two branches, some edits, a C project and Python modules
    bulk      a few large files
    many      100,000 small files, to walk

Every time stamp lies in the past: git distrusts what is as young as its index and would read it again.
"""

import os
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.benches.inside import asset

_WORDS = ("core", "util", "view", "model", "test", "data", "page", "form", "return", "value", "needle")
_LONG_AGO = 1_600_000_000
_IDENTITY = ("-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0")


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the full sizes are those that the rows are named for."""

    assets: int = 5_000
    sources: int = 1_400
    modules: int = 300
    units: int = 60
    edited: int = 500
    many: int = 100_000
    megabytes: int = 512
    appended_megabytes: int = 1_024
    random_blocks: int = 20_000
    transactions: int = 5_000
    packages: int = 40
    operations: int = 1_000


QUICK = Sizes(
    assets=1_500,
    sources=500,
    modules=80,
    units=20,
    edited=125,
    many=20_000,
    megabytes=128,
    appended_megabytes=256,
    random_blocks=4_000,
    transactions=1_000,
    packages=10,
    operations=300,
)


def make_project(place: Path, sizes: Sizes, environment: Mapping[str, str]) -> None:
    """A repository; its branch `other` differs in one source of four."""
    for name, text in _project_files(sizes):
        _write(place / name, text)
    _age(place)
    git(place, environment, "init", "--quiet", "--initial-branch=main")
    git(place, environment, "add", ".")
    git(place, environment, "commit", "--quiet", "--message=all")
    git(place, environment, "checkout", "--quiet", "-b", "other")
    for number in range(0, sizes.sources, 4):
        with (place / _source(number)).open("a") as file:
            file.write("another line\n")
        if number % 20 == 0:
            _write(place / f"more/d{number % 7}/f{number}.txt", f"only here {number}\n")
    git(place, environment, "add", ".")
    git(place, environment, "commit", "--quiet", "--message=other")
    git(place, environment, "checkout", "--quiet", "main")
    for number in range(1, 40, 2):
        (place / _source(number)).write_text(f"edited {number}\n")
        _write(place / f"untracked/f{number}.txt", "not known to git\n")
    _age(place)
    refresh(place, environment)


def refresh(repository: Path, environment: Mapping[str, str]) -> None:
    """Let the index know the files as they are here, so that git need not read them."""
    if (repository / ".git").is_dir():
        git(repository, environment, "status", "--porcelain")


def git(where: Path, environment: Mapping[str, str], *words: str) -> None:
    command = ["git", *_IDENTITY, *words]
    subprocess.run(command, cwd=where, env=dict(environment), check=True, stdout=subprocess.DEVNULL)


def edited_sources(sizes: Sizes) -> list[str]:
    """The files that `sed -i` is to work on."""
    return [_source(number) for number in range(sizes.edited)]


def make_bulk(place: Path, sizes: Sizes) -> None:
    """One large file to read, and a larger one, almost all hole, to append to."""
    place.mkdir()
    chosen = random.Random(2)  # noqa: S311 - the same bytes every time, no secret
    block = chosen.randbytes(1 << 20)
    with (place / "large").open("wb") as file:
        for number in range(sizes.megabytes):
            file.write(number.to_bytes(8, "little") + block[8:])
    with (place / "huge").open("wb") as file:
        file.write(b"begin")
        file.truncate(sizes.appended_megabytes << 20)
    _age(place)


def make_many(place: Path, sizes: Sizes) -> None:
    for hundred in range(sizes.many // 100):
        folder = place / f"d{hundred // 100}" / f"e{hundred % 100}"
        folder.mkdir(parents=True)
        for number in range(100):
            (folder / f"file{number}.txt").write_bytes(b"x")


def _project_files(sizes: Sizes) -> Iterator[tuple[str, str]]:
    chosen = random.Random(1)  # noqa: S311 - the same tree every time, no secret

    def text(lines: int) -> str:
        return "".join(" ".join(chosen.choices(_WORDS[:-1], k=8)) + "\n" for _ in range(lines))

    for number in range(sizes.assets):
        yield asset(number), text(chosen.randint(1, 30))
    for number in range(sizes.sources):
        yield _source(number), text(chosen.randint(20, 120)) + ("needle\n" if number % 3 == 0 else "")
    for number in range(sizes.modules):
        yield f"lib/p{number // 20}/m{number}.py", _module(number)
    yield from c_project(sizes.units)
    yield ".gitignore", "*.o\n__pycache__\nnode_modules\n"


def _source(number: int) -> str:
    return f"src/pkg{number // 200}/{_WORDS[number // 40 % 5]}/s{number}.txt"


def _module(number: int) -> str:
    functions = "\n".join(
        f"def f{one}(a, b={one}):\n    if a > b:\n        return [a + i for i in range(b)]\n    return b\n"
        for one in range(8)
    )
    return f'"""Module {number}."""\nimport os\n\n{functions}\nvalue = {number}\n'


def c_project(units: int) -> Iterator[tuple[str, str]]:
    """Units that include a few headers each, and a Makefile that links them."""
    for number in range(8):
        yield f"c/include/h{number}.h", "".join(f"int unit{one}(int);\n" for one in range(number, units, 8))
    for number in range(units):
        includes = "".join(f'#include "h{one}.h"\n' for one in range(8))
        body = f"int unit{number}(int a) {{ return a * {number} + (int)strlen(__func__); }}\n"
        yield f"c/unit{number}.c", f"#include <stdio.h>\n#include <string.h>\n{includes}{body}"
    calls = " + ".join(f"unit{number}({number})" for number in range(units))
    includes = "".join(f'#include "h{one}.h"\n' for one in range(8))
    yield (
        "c/main.c",
        f'#include <stdio.h>\n{includes}int main(void) {{ printf("%d\\n", {calls}); return 0; }}\n',
    )
    yield (
        "c/Makefile",
        "CFLAGS = -O1 -Iinclude -MMD\nobjects = $(patsubst %.c,%.o,$(wildcard *.c))\n"
        "program: $(objects)\n\t$(CC) -o $@ $^\n-include $(wildcard *.d)\n",
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _age(place: Path) -> None:
    for folder, folders, names in os.walk(place):
        if ".git" in folders:
            folders.remove(".git")
        for name in names:
            os.utime(Path(folder) / name, (_LONG_AGO, _LONG_AGO))
