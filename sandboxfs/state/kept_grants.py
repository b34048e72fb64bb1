"""Kept grants: `[[grant]]` tables written to the end of the user's configuration, and taken out again.

Only an answer that says so is written, and only to the user's own file, never to a project's. Every other
byte of the file stays. A symlink is followed to the file that it names, which is replaced as a whole and has
the mode, owner and attributes of the one before.

The new content and the old one change places, and what came out is looked at: where it is not what was read,
another program wrote the file meanwhile. Then the two are changed back, and the edit is made anew on what is
there. An edit counts only when the new file reads well and says what the old one said, but for the table.
"""

import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.hostfs.copy import Attributes, attributes_at, dress_file, of_the_host
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import sync_directory
from sandboxfs.paths import make_directories, quoted
from sandboxfs.policy.config import PROJECT_FILE, read_user_config, user_config
from sandboxfs.policy.grants import KeptGrant
from sandboxfs.policy.toml import SIZE_LIMIT, TomlTable, key_lines, parse_document

MARK = "# sandboxfs, "
"""The beginning of the comment above a table, which says when it was written and from which question."""

# How often an edit is made anew because another program wrote the file meanwhile.
_ATTEMPTS = 5
_BY_HAND = "edit the file by hand: 'sandboxfs grants --toml' prints the tables"


@dataclass(frozen=True)
class GrantFile:
    """The configuration at *path*, and the tables in it for *workspace*; *view* is where that is mounted."""

    path: Path
    workspace: Path
    view: Path

    def read(self) -> tuple[KeptGrant, ...]:
        """Return the grants that were kept for the workspace, in the order of the file."""
        return tuple(
            grant
            for grant in read_user_config(self.path).grants
            if os.path.realpath(grant.workspace) == str(self.workspace)
        )

    def add(self, grant: KeptGrant, about: str) -> KeptGrant:
        """Append *grant* under a comment that says what it is *about*; return it with its line."""
        table = f"{MARK}{about}\n{grant.toml()}"
        read = self._document(self._edit(lambda content: self._with(content, grant, table)))
        return replace(grant, source=user_config(read).grants[-1].source)

    def remove(self, grants: Collection[KeptGrant]) -> set[KeptGrant]:
        """Take the tables that say the same as *grants* out, with their comments; return those found."""
        found: set[KeptGrant] = set()

        def without(content: bytes) -> bytes:
            found.clear()
            return self._without(content, grants, found)

        self._edit(without)
        return found

    # Content

    def _document(self, content: bytes) -> TomlTable:
        return parse_document(str(self.path), content)

    def _with(self, content: bytes, grant: KeptGrant, table: str) -> bytes:
        before = self._values(content)
        newline = b"\r\n" if b"\r\n" in content else b"\n"
        gap = b"" if not content else newline if content.endswith(b"\n") else newline * 2
        made = content + gap + table.encode().replace(b"\n", newline)
        if len(made) > SIZE_LIMIT:
            raise UsageError(f"{self.path}: the configuration would be too large", hint="revoke kept grants")
        self._check(made, before, [*_listed(before), tomllib.loads(table)["grant"][0]])
        if user_config(self._document(made)).grants[-1] != grant:
            raise self._unsure()
        return made

    def _without(self, content: bytes, grants: Collection[KeptGrant], found: set[KeptGrant]) -> bytes:
        before = self._values(content)
        going = set()
        for number, one in enumerate(user_config(self._document(content)).grants):
            same = [grant for grant in grants if self._is_same(one, grant)]
            if same:
                going.add(number)
                found.update(same)
        lines = content.splitlines(keepends=True)
        of_keys = key_lines(content.decode().replace("\r\n", "\n"))
        for number in sorted(going, reverse=True):
            here = [line for key, line in of_keys.items() if key[:2] == ("grant", number)]
            start, end = min(here) - 1, max(here)
            while start and lines[start - 1].startswith(MARK.encode()):
                start -= 1
            if start and not lines[start - 1].strip():
                start -= 1
            del lines[start:end]
        made = b"".join(lines)
        kept = [one for number, one in enumerate(_listed(before)) if number not in going]
        self._check(made, before, kept)
        return made

    def _is_same(self, one: KeptGrant, grant: KeptGrant) -> bool:
        same_place = os.path.realpath(one.workspace) == str(self.workspace)
        return same_place and replace(one, workspace=grant.workspace) == grant

    def _values(self, content: bytes) -> dict[str, object]:
        user_config(self._document(content))
        return tomllib.loads(content.decode().replace("\r\n", "\n"))

    def _check(self, made: bytes, before: dict[str, object], grants: list[object]) -> None:
        """Raise unless the new content says what the one before says, with these grants."""
        expected = {key: value for key, value in before.items() if key != "grant"}
        if grants:
            expected["grant"] = grants
        try:
            if self._values(made) == expected:
                return
        except UsageError:
            pass
        raise self._unsure()

    def _unsure(self) -> UsageError:
        return UsageError(f"{self.path}: the tables [[grant]] are not written as expected", hint=_BY_HAND)

    # The file

    def _edit(self, change: Callable[[bytes], bytes]) -> bytes:
        """Replace the content of the file by what *change* makes of it; return that."""
        target = Path(os.path.realpath(self.path))
        if target.name == PROJECT_FILE or target.is_relative_to(self.view):
            what = "the file of a project" if target.name == PROJECT_FILE else "in the view"
            raise UsageError(f"{quoted(target)} is {what}: answers are not kept there")
        try:
            make_directories(target.parent)
            with HostDir.at(target.parent) as directory:
                return self._edit_in(directory, os.fsencode(target.name), change)
        except OSError as error:
            raise UsageError(f"cannot write {quoted(target)}: {error.strerror}") from error

    def _edit_in(self, directory: HostDir, name: bytes, change: Callable[[bytes], bytes]) -> bytes:
        for _ in range(_ATTEMPTS):
            status = directory.stat(name)
            if status is not None and (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1):
                raise UsageError(f"{self.path}: answers are kept in a regular file of one name only")
            if status is not None and os.geteuid() not in (0, status.st_uid):
                raise UsageError(f"{self.path}: the file belongs to another user")
            content = b"" if status is None else directory.read(name)
            made = change(content)
            if made == content or _replaced(directory, name, status, content, made):
                return made
        raise UsageError(f"{self.path}: another program writes the file", hint="try again")


def _listed(document: dict[str, object]) -> list[object]:
    found = document.get("grant", [])
    return found if isinstance(found, list) else []


def _replaced(
    directory: HostDir, name: bytes, status: os.stat_result | None, content: bytes, made: bytes
) -> bool:
    """Put a file with the content *made* in place of one with *status* and *content*, unless that changed."""
    staged = b".sandboxfs-config-" + secrets.token_hex(4).encode()
    attributes = None if status is None else attributes_at(directory, name, status, of_the_host)
    try:
        own = _stage(directory, staged, made, attributes)
        if status is None:
            try:
                directory.move(staged, directory, name)
            except FileExistsError:
                return False
        else:
            try:
                directory.exchange(staged, directory, name)
            except FileNotFoundError:
                return False
            if not _is_what_was_read(directory, staged, status, content):
                directory.exchange(staged, directory, name)
                now = directory.stat(staged)
                if now is not None and now.st_ino != own:
                    # Written once more meanwhile: the latest stays.
                    directory.exchange(staged, directory, name)
                return False
    finally:
        if directory.stat(staged) is not None:
            directory.unlink(staged)
    sync_directory(directory)
    return True


def _stage(directory: HostDir, staged: bytes, made: bytes, attributes: Attributes | None) -> int:
    fd = directory.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(made)
        if attributes is not None:
            dress_file(fd, attributes)
            # Times are those of this edit.
            os.utime(fd)
        os.fsync(fd)
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _is_what_was_read(directory: HostDir, staged: bytes, status: os.stat_result, content: bytes) -> bool:
    now = directory.stat(staged)
    return (
        now is not None
        and (now.st_dev, now.st_ino, now.st_nlink) == (status.st_dev, status.st_ino, 1)
        and stat.S_ISREG(now.st_mode)
        and directory.read(staged) == content
    )
