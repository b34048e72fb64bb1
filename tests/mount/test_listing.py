"""Is a directory listed whole, once, and with the right numbers, however it changes meanwhile?"""

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dirstream import DirStream
from tests.support.mounted import Area
from tests.support.tree import Fifo, HardLink, Sock, Symlink, Tree

pytestmark = pytest.mark.any_user

MakeArea = Callable[[Tree], Area]

MANY = 1200
DOTS = {b".", b".."}


def numbered(count: int, stem: str = "entry") -> dict[str | bytes, str]:
    return {f"{stem}{number:05}": "" for number in range(count)}


def merged_directory(area: MakeArea) -> tuple[Area, set[bytes]]:
    """A directory of which some names are lower, some upper, some both and some whiteouts; and its names."""
    here = area(numbered(MANY))
    names = {f"entry{number:05}" for number in range(MANY)}
    for number in range(0, MANY, 7):
        (here.view / f"entry{number:05}").unlink()
        names.discard(f"entry{number:05}")
    for number in range(1, MANY, 7):
        (here.view / f"entry{number:05}").write_text("changed")
    for number in range(0, MANY, 5):
        (here.view / f"new{number:05}").touch()
        names.add(f"new{number:05}")
    return here, {name.encode() for name in names}


def test_every_name_of_a_merged_directory_is_listed_once(area: MakeArea) -> None:
    here, names = merged_directory(area)
    with DirStream(here.view) as stream:
        listed = [entry.name for entry in stream.rest()]
    assert len(listed) == len(set(listed))
    assert set(listed) == names | DOTS


def test_the_two_dots_come_once_and_carry_the_numbers_of_the_directory_and_its_parent(area: MakeArea) -> None:
    here = area({"lower/file": ""})
    (here.view / "upper").mkdir()
    for directory in (here.view / "lower", here.view / "upper"):
        with DirStream(directory) as stream:
            dots = [(entry.name, entry.ino) for entry in stream.rest() if entry.name in DOTS]
        assert sorted(dots) == [
            (b".", directory.stat().st_ino),
            (b"..", directory.parent.stat().st_ino),
        ]


def test_telldir_and_seekdir_lead_back_to_every_entry(area: MakeArea) -> None:
    here, _ = merged_directory(area)
    with DirStream(here.view) as stream:
        places = []
        while True:
            position = stream.tell()
            entry = stream.read()
            if entry is None:
                break
            places.append((position, entry.name))
        random.Random(1).shuffle(places)
        for position, name in places[:300]:
            stream.seek(position)
            entry = stream.read()
            assert entry is not None
            assert entry.name == name


def test_seekdir_finds_its_place_while_entries_come_and_go(area: MakeArea) -> None:
    here = area(numbered(MANY))
    with DirStream(here.view) as stream:
        for _ in range(MANY // 2):
            stream.read()
        position = stream.tell()
        rest = [entry.name for entry in stream.rest()]
        gone = set(rest[::3])
        for name in gone:
            os.unlink(os.path.join(os.fsencode(here.view), name))
        for number in range(100):
            (here.view / f"aaa{number}").touch()
        stream.seek(position)
        again = [entry.name for entry in stream.rest()]
    # Names made or removed since then may show or not, as anywhere.
    others = [name for name in again if not name.startswith(b"aaa") and name not in gone]
    assert others == [name for name in rest if name not in gone]


def test_rewinddir_shows_what_has_changed(area: MakeArea) -> None:
    here = area({"stays": "", "goes": ""})
    with DirStream(here.view) as stream:
        assert {entry.name for entry in stream.rest()} == {b"stays", b"goes"} | DOTS
        (here.view / "goes").unlink()
        (here.view / "comes").touch()
        stream.rewind()
        assert {entry.name for entry in stream.rest()} == {b"stays", b"comes"} | DOTS


@pytest.mark.parametrize("origin", ["lower", "upper"])
def test_listing_neither_skips_nor_repeats_while_entries_come_and_go(area: MakeArea, origin: str) -> None:
    names = numbered(MANY)
    here = area(names if origin == "lower" else {})
    if origin == "upper":
        for name in names:
            (here.view / os.fsdecode(name)).touch()
    steady = {os.fsencode(name) for name in names if not str(name).endswith("5")}
    seen = []
    with DirStream(here.view) as stream:
        while (entry := stream.read()) is not None:
            seen.append(entry.name)
            step = len(seen)
            if step % 10 == 0 and step < MANY:
                # One goes that ends in 5, before or after this place; two come; one moves away and back.
                (here.view / f"entry{step // 10 * 10 + 5:05}").unlink(missing_ok=True)
                (here.view / f"entry{step:05}x").touch()
                (here.view / f"a{step}").touch()
                moving = here.view / f"entry{(step * 37) % MANY // 10 * 10:05}"
                moving.rename(moving.with_name("elsewhere"))
                moving.with_name("elsewhere").rename(moving)
    assert len(seen) == len(set(seen)), "a name was repeated"
    assert steady <= set(seen), "a name was skipped"


def test_two_streams_of_one_directory_do_not_disturb_each_other(area: MakeArea) -> None:
    here = area(numbered(MANY))
    with DirStream(here.view) as one, DirStream(here.view) as other:
        names: tuple[list[bytes], list[bytes]] = [], []
        for _ in range(MANY + 2):
            for stream, found in zip((one, other), names, strict=True):
                entry = stream.read()
                assert entry is not None
                found.append(entry.name)
            other.tell()
        assert one.read() is None
        assert other.read() is None
    assert sorted(names[0]) == sorted(names[1])


def test_removing_every_entry_as_it_is_listed_leaves_the_directory_empty(area: MakeArea) -> None:
    here, _ = merged_directory(area)
    with DirStream(here.view) as stream:
        while (entry := stream.read()) is not None:
            if entry.name not in DOTS:
                os.unlink(os.path.join(os.fsencode(here.view), entry.name))
    assert os.listdir(here.view) == []
    here.view.rmdir()


def test_a_removed_directory_that_is_still_open_is_empty(area: MakeArea) -> None:
    here = area({"dir/file": ""})
    with DirStream(here.view / "dir") as stream:
        (here.view / "dir/file").unlink()
        (here.view / "dir").rmdir()
        assert {entry.name for entry in stream.rest()} <= DOTS


def test_listed_numbers_and_types_are_those_of_stat(area: MakeArea) -> None:
    here = area(
        {
            "file": "text",
            "dir/inner": "",
            "link": Symlink("file"),
            "dangling": Symlink("nowhere"),
            "fifo": Fifo(),
            "socket": Sock(),
            "hard": HardLink("file"),
            "copied": "text",
            "touched/inner": "",
        }
    )
    (here.view / "copied").write_text("changed")
    (here.view / "touched").chmod(0o700)
    (here.view / "new file").touch()
    (here.view / "new dir").mkdir()
    (here.view / "new link").symlink_to("file")
    os.mkfifo(here.view / "new fifo")
    os.link(here.view / "new file", here.view / "new hard link")
    (here.view / "dir").rename(here.view / "renamed dir")
    # Once before anything was looked at one by one, once after.
    for _ in range(2):
        check_numbers(here.view)


def check_numbers(directory: Path) -> None:
    with DirStream(directory) as stream:
        listed = [entry for entry in stream.rest() if entry.name not in DOTS]
    assert listed
    for entry in listed:
        status = os.lstat(os.path.join(os.fsencode(directory), entry.name))
        assert (entry.ino, entry.kind) == (status.st_ino, stat.S_IFMT(status.st_mode) >> 12), entry.name


def test_files_looked_up_before_are_listed_with_the_same_numbers_and_types(area: MakeArea) -> None:
    here = area(numbered(MANY) | {"link": Symlink("entry00000"), "sub/": ""})
    (here.view / "entry00001").write_text("changed")
    known = {name: os.lstat(here.view / name) for name in os.listdir(here.lower)}
    with os.scandir(here.view) as entries:
        listed = {entry.name: (entry.inode(), entry.is_file(follow_symlinks=False)) for entry in entries}
    assert listed == {name: (status.st_ino, stat.S_ISREG(status.st_mode)) for name, status in known.items()}
    # What the kernel knew of them is still what they are.
    assert {name: os.lstat(here.view / name).st_ino for name in known} == {
        name: status.st_ino for name, status in known.items()
    }


def test_a_listing_that_mentions_much_is_whole_whatever_the_reader_asks_for_at_once(area: MakeArea) -> None:
    names = [f"{number:04}" + "n" * 250 for number in range(600)]
    here = area(dict.fromkeys(names, ""))
    for name in names:
        os.stat(here.view / name)
    with DirStream(here.view) as stream:
        listed = [entry.name for entry in stream.rest()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name.encode() for name in names} | DOTS
