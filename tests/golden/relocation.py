"""A state directory and its workspace as a text that can be put up again at another place.

What is kept on disk holds facts about inodes: device and inode numbers, sizes of directories, times of the
last change of status, owners, and the place of it all. No two machines have the same ones. `take` writes them
as marks in the form of `@ino:workspace/a@`, where the fact is that of the object called `workspace/a`; `put`
makes every object anew and writes what is true of it in place of each mark. Everything else stays as it was,
byte for byte.

    @root@           where the state directory and the workspace are
    @dev@            the device number of their filesystem
    @filesystem@     its type, as of statfs(2)
    @uid@, @gid@     who runs this
    @ino:PATH@       the number of an object
    @hex:PATH@       the same, as it is in names
    @upper:PATH@     the same, with the tag that numbers of an upper have
    @ctime:PATH@     its last change of status, in nanoseconds
    @size:PATH@      the size of a directory
                     (a PATH that is `#` and a number is that of the entry with the number)

A mark that is the whole of a text of JSON or TOML stands for a number.
"""

import json
import os
import re
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

Json = dict[str, object]

_RECORD: Final = "user.overlay.sandboxfs"
_RECORD_LAYOUT: Final = struct.Struct("<BxxxIQ")
_UPPER_TAG: Final = 127 << 56
_MARK = re.compile(r"@(dev|filesystem|uid|gid|ino|upper|hex|ctime|size)(?::(.*?))?@", re.DOTALL)
_INDEX = re.compile(r"(.*/roots/\d+/index/)([hin])([0-9a-f]+)", re.DOTALL)
# What a daemon said, an audit log (whose chain of digests holds for its very bytes), room for a full disk.
_LEFT_OUT = re.compile(r"state/(reserve|run|sandboxes/[^/]+/(daemon\.log|audit\..*|control|lifeline))(/.*)?")


def take(root: Path) -> list[Json]:
    """Describe everything below *root*, which is at rest."""
    return _Taking(root).run()


def put(entries: list[Json], root: Path) -> None:
    """Make what `take` described below *root*, which is made as well."""
    _Putting(root).run(entries)


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every path below *root*, directories before what is in them, with what the host says of it."""
    for name in sorted(os.listdir(root)):
        status = os.lstat(root / name)
        yield name, status
        if stat.S_ISDIR(status.st_mode):
            for inner, found in walk(root / name):
                yield f"{name}/{inner}", found


class _Taking:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._dev = os.lstat(root).st_dev
        self._found = {path: status for path, status in walk(root) if self._is_wanted(path)}
        # Of a file with several names one in the workspace comes first; what only the index has goes by the
        # number of its entry, because its name is made of marks itself.
        self._paths: dict[int, str] = {}
        for path in sorted(
            self._found, key=lambda path: (_is_index(path), not path.startswith("workspace"), path)
        ):
            called = f"#{list(self._found).index(path)}" if _is_index(path) else path
            self._paths.setdefault(self._found[path].st_ino, called)

    def _is_wanted(self, path: str) -> bool:
        return _LEFT_OUT.fullmatch(path) is None

    def run(self) -> list[Json]:
        return [self._entry(path, status) for path, status in self._found.items()]

    def _entry(self, path: str, status: os.stat_result) -> Json:
        entry: Json = {"path": self._name(path)}
        first = self._first(path, status)
        if first != path:
            return entry | {"type": "link", "to": first}
        place = self._root / path
        kind = stat.S_IFMT(status.st_mode)
        entry["type"] = _KINDS[kind]
        if kind == stat.S_IFCHR:
            assert status.st_rdev == 0, f"a device at {path}"
            return entry
        if kind == stat.S_IFREG:
            entry["content"] = self._content(path, place.read_bytes())
        elif kind == stat.S_IFLNK:
            entry["target"] = self._target(path, os.readlink(place))
        if kind != stat.S_IFLNK:
            entry["mode"] = f"{stat.S_IMODE(status.st_mode):o}"
        entry["mtime_ns"] = status.st_mtime_ns
        xattrs = self._xattrs(place)
        return entry | ({"xattrs": xattrs} if xattrs else {})

    def _first(self, path: str, status: os.stat_result) -> str:
        """The name by which a file is made, of which others are links."""
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            return path
        names = (one for one, other in self._found.items() if other.st_ino == status.st_ino)
        return min(names, key=lambda one: (_is_index(one), list(self._found).index(one)))

    def _name(self, path: str) -> str:
        """A path; names in the index are made of numbers."""
        match = _INDEX.fullmatch(path)
        if match is None:
            return path
        folder, letter, digits = match.groups()
        owner = self._paths.get(int(digits, 16))
        return path if owner is None else f"{folder}{letter}@hex:{owner}@"

    def _target(self, path: str, target: str) -> str:
        match = _INDEX.fullmatch(path)
        if match is not None and match[2] == "i":
            return str(self._number(int(target)))
        return target

    def _xattrs(self, place: Path) -> Json:
        found: Json = {}
        for name in sorted(os.listxattr(place, follow_symlinks=False)):
            if name.startswith("user."):
                value = os.getxattr(place, name, follow_symlinks=False)
                found[name] = (
                    self._record(value) if name == _RECORD else value.decode("utf-8", "surrogateescape")
                )
        return found

    def _record(self, value: bytes) -> Json:
        version, links, number = _RECORD_LAYOUT.unpack(value)
        return {"version": version, "links": links, "number": self._number(number)}

    def _number(self, number: int) -> object:
        if number > _UPPER_TAG and number - _UPPER_TAG in self._paths:
            return f"@upper:{self._paths[number - _UPPER_TAG]}@"
        return f"@ino:{self._paths[number]}@" if number in self._paths else number

    def _content(self, path: str, content: bytes) -> str:
        text = content.decode("utf-8", "surrogateescape")
        if not path.startswith("state/"):
            return text
        if path.endswith("lock"):
            return ""
        if path.endswith("sandbox.toml"):
            return self._toml(text)
        text = "\n".join(map(self._line, text.split("\n")))
        return text.replace(str(self._root), "@root@")

    def _toml(self, text: str) -> str:
        text = text.replace(str(self._root), "@root@")
        text = re.sub(r"^filesystem = \d+$", 'filesystem = "@filesystem@"', text, flags=re.MULTILINE)
        # Nobody can have a directory be born at another time; 0 says that it is not known.
        text = re.sub(r"^born = \d+$", "born = 0", text, flags=re.MULTILINE)
        return re.sub(r"^inode = \d+$", 'inode = "@ino:workspace@"', text, flags=re.MULTILINE)

    def _line(self, line: str) -> str:
        """A line of a text, with marks if it is an object of JSON."""
        found = _object(line)
        return line if found is None else json.dumps(self._marked(found), separators=(",", ":"))

    def _marked(self, found: object) -> object:
        match found:
            case [int(dev), int(ino), int(mode), int(size), int(mtime)] if dev == self._dev:
                return ["@dev@", self._ino(ino), mode, self._size(ino, mode, size), mtime]
            case [*values]:
                return [self._marked(value) for value in values]
            case dict():
                return {key: self._field(key, value, found) for key, value in found.items()}
            case _:
                return found

    def _field(self, key: str, value: object, fields: Json) -> object:
        if type(value) is not int:
            match key, value:
                case "owner", [int(uid), int(gid)]:
                    return [_owner("uid", uid), _owner("gid", gid)]
                case _:
                    return self._marked(value)
        ino, mode = fields.get("ino"), fields.get("mode")
        if not isinstance(ino, int):
            return self._number(value) if key == "number" and value > 1000 else value
        match key:
            case "dev":
                return "@dev@"
            case "ino":
                return self._ino(value)
            case "number":
                return self._number(value)
            case "uid" | "gid":
                return _owner(key, value)
            case "size" if isinstance(mode, int):
                return self._size(ino, mode, value)
            case "ctime_ns":
                path = self._paths.get(ino)
                same = path is not None and self._found[path].st_ctime_ns == value
                return f"@ctime:{path}@" if same else value
            case _:
                return value

    def _ino(self, ino: int) -> object:
        return f"@ino:{self._paths[ino]}@" if ino in self._paths else ino

    def _size(self, ino: int, mode: int, size: int) -> object:
        return f"@size:{self._paths[ino]}@" if stat.S_ISDIR(mode) and ino in self._paths else size


class _Putting:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._entries: list[Json] = []

    def run(self, entries: list[Json]) -> None:
        self._entries = entries
        self._root.mkdir(parents=True)
        # Names and texts that tell of other objects come when these are there.
        later = [entry for entry in entries if _MARK.search(str(entry["path"]))]
        for entry in entries:
            if entry not in later:
                self._make(str(entry["path"]), entry)
        for entry in later:
            self._make(self._filled(str(entry["path"])), entry)
        for entry in reversed(entries):
            self._dress(entry)
        for entry in entries:
            self._complete(entry)

    def _make(self, path: str, entry: Json) -> None:
        place = self._root / path
        match entry["type"]:
            case "directory":
                place.mkdir(mode=0o700)
            case "file":
                place.write_bytes(_encoded(str(entry["content"])))
            case "symlink":
                os.symlink(self._filled(str(entry["target"])), place)
            case "link":
                os.link(self._root / str(entry["to"]), place, follow_symlinks=False)
            case "whiteout":
                os.mknod(place, stat.S_IFCHR, 0)
            case "fifo":
                os.mkfifo(place)
            case "socket":
                os.mknod(place, stat.S_IFSOCK)
            case kind:
                raise ValueError(f"no such kind of object: {kind}")

    def _dress(self, entry: Json) -> None:
        """Give an object its attributes; what is in it has its own by now."""
        place = self._place(entry)
        for name, value in _fields(entry.get("xattrs")).items():
            os.setxattr(place, name, self._xattr(value), follow_symlinks=False)
        if "mode" in entry:
            os.chmod(place, int(str(entry["mode"]), 8))
        self._date(entry)

    def _date(self, entry: Json) -> None:
        if "mtime_ns" in entry:
            mtime = int(str(entry["mtime_ns"]))
            os.utime(self._place(entry), ns=(mtime, mtime), follow_symlinks=False)

    def _complete(self, entry: Json) -> None:
        """Write facts in place of marks; the file itself is not one that any of them is about."""
        content = str(entry.get("content", ""))
        if entry["type"] == "file" and _MARK.search(content.replace("@root@", "@dev@")):
            lines = "\n".join(map(self._line, content.split("\n")))
            self._place(entry).write_bytes(_encoded(lines.replace("@root@", str(self._root))))
            self._date(entry)

    def _line(self, line: str) -> str:
        found = _object(line)
        if found is not None:
            return json.dumps(self._unmarked(found), separators=(",", ":"))
        return re.sub(f'"{_MARK.pattern}"', lambda match: str(self._fact(match[1], match[2])), line)

    def _unmarked(self, found: object) -> object:
        match found:
            case [*values]:
                return [self._unmarked(value) for value in values]
            case dict():
                return {key: self._unmarked(value) for key, value in found.items()}
            case str() if match_ := _MARK.fullmatch(found):
                return self._fact(match_[1], match_[2])
            case _:
                return found

    def _xattr(self, value: object) -> bytes:
        if isinstance(value, str):
            return _encoded(value)
        fields = _fields(value)
        number = self._unmarked(fields["number"])
        return _RECORD_LAYOUT.pack(fields["version"], fields["links"], number)

    def _place(self, entry: Json) -> Path:
        return self._root / self._filled(str(entry["path"]))

    def _filled(self, text: str) -> str:
        return _MARK.sub(lambda match: str(self._fact(match[1], match[2])), text)

    def _fact(self, word: str, path: str | None) -> object:
        if path is not None and path.startswith("#"):
            status = os.lstat(self._place(self._entries[int(path[1:])]))
        else:
            status = os.lstat(self._root / (path or ""))
        facts: dict[str, Callable[[], object]] = {
            "dev": lambda: status.st_dev,
            "filesystem": lambda: _filesystem(self._root),
            "uid": os.geteuid,
            "gid": os.getegid,
            "ino": lambda: status.st_ino,
            "upper": lambda: status.st_ino | _UPPER_TAG,
            "hex": lambda: f"{status.st_ino:x}",
            "ctime": lambda: status.st_ctime_ns,
            "size": lambda: status.st_size,
        }
        return facts[word]()


_KINDS: Final = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "whiteout",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def _is_index(path: str) -> bool:
    return _INDEX.fullmatch(path) is not None


def _owner(key: str, number: int) -> object:
    return f"@{key}@" if number == {"uid": os.geteuid, "gid": os.getegid}[key]() else number


def _object(line: str) -> Json | None:
    """The object of JSON that a line is; None for anything else."""
    if not line.startswith("{"):
        return None
    try:
        found: object = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _fields(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _filesystem(place: Path) -> int:
    told = subprocess.run(["stat", "-f", "-c", "%t", place], capture_output=True, check=True, text=True)
    return int(told.stdout, 16)
