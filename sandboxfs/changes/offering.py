"""How is a change laid before a person, so that parts of it can be chosen?

Changed text is offered hunk by hunk, after its rename and its change of mode, which are questions of their
own. Everything else (binary and very large files, deletions, symlinks, directories, special files, changes of
type) is offered as a whole. What is shown looks like a patch, but speaks also of what git has no words for.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.changes.finding import Finding, Side
from sandboxfs.changes.hunks import Hunk, hunks, is_binary
from sandboxfs.changes.patch import Kind, quote_name

# Nobody reads through more; and a diff holds both texts in memory.
LARGEST_TEXT = 64 << 20

_TYPES = {
    stat.S_IFREG: b"file",
    stat.S_IFDIR: b"directory",
    stat.S_IFLNK: b"symlink",
    stat.S_IFIFO: b"fifo",
    stat.S_IFSOCK: b"socket",
    stat.S_IFCHR: b"character device",
    stat.S_IFBLK: b"block device",
}


class Subject(StrEnum):
    """What a question is about, as its words say it."""

    HUNK = "hunk"
    ADDITION = "addition"
    DELETION = "deletion"
    RENAME = "rename"
    MODE = "mode change"
    TYPE = "type change"
    CHANGE = "change"


_SUBJECTS = {
    Kind.ADDED: Subject.ADDITION,
    Kind.DELETED: Subject.DELETION,
    Kind.RENAMED: Subject.RENAME,
    Kind.MODE: Subject.MODE,
    Kind.TYPE: Subject.TYPE,
    Kind.MODIFIED: Subject.CHANGE,
}


@dataclass(frozen=True)
class Lead:
    """A part of a change that is no hunk; *text* shows it as a patch would."""

    subject: Subject
    text: bytes


@dataclass(frozen=True)
class Item:
    """One changed path: *leads* are asked about first, then *hunks*, which turn *old* text into *new*.

    A change without hunks has one lead, which stands for all of it. A lead that is a rename carries the
    hunks: what they change can only be where the path is. *header* is shown above, *what* names a hunk.
    """

    path: bytes
    leads: tuple[Lead, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    old: bytes = b""
    new: bytes = b""
    header: tuple[bytes, ...] = ()
    what: Subject = Subject.HUNK


def offer(finding: Finding, context: int = 3, notes: tuple[bytes, ...] = ()) -> Item:
    """Make of *finding* what a person can choose from; *notes* are lines to show under its name.

    The content of regular files is read.
    """
    old_name = quote_name(finding.path if finding.old_path is None else finding.old_path, b"a/")
    new_name = quote_name(finding.path, b"b/")
    header = (b"diff --git %s %s" % (old_name, new_name), *notes)
    old, new = finding.old, finding.new
    if finding.kind is Kind.MODE or not _may_be_text(old) or not _may_be_text(new):
        return Item(finding.path, (_whole(finding, _unread(finding)),), header=header)
    before, after = old.read() if old else b"", new.read() if new else b""
    if is_binary(before) or is_binary(after):
        differ = b"Binary files differ: %d bytes before, %d after\n" % (len(before), len(after))
        return Item(finding.path, (_whole(finding, differ if before != after else b""),), header=header)
    found = tuple(hunks(before, after, context, finding.path))
    if new is None or not found or finding.links:
        # All names of one file go together, and as a whole.
        return Item(finding.path, (_whole(finding, b"".join(hunk.text for hunk in found)),), header=header)
    return Item(
        finding.path,
        tuple(_leads(finding)),
        found,
        before,
        after,
        (*header, *_opening(old, new), b"--- " + (old_name if old else b"/dev/null"), b"+++ " + new_name),
        Subject.HUNK if old else Subject.ADDITION,
    )


def _may_be_text(side: Side | None) -> bool:
    return side is None or (side.is_file and side.size <= LARGEST_TEXT)


def _unread(finding: Finding) -> bytes:
    """Show what is offered without looking into it: symlinks by their targets, large files by their sizes."""
    old, new = _glance(finding.old), _glance(finding.new)
    if finding.kind is Kind.MODE or (old == new and old.startswith(b"symlink")):
        return b""
    return b"".join(sign + text + b"\n" for sign, text in ((b"-", old), (b"+", new)) if text)


def _glance(side: Side | None) -> bytes:
    if side is not None and stat.S_ISLNK(side.mode):
        return b"symlink to " + quote_name(side.target)
    return b"file of %d bytes" % side.size if side is not None and side.is_file else b""


def _whole(finding: Finding, content: bytes) -> Lead:
    """Put everything about a change into one question."""
    subject = _SUBJECTS[finding.kind]
    if subject is Subject.CHANGE and not content:
        # The content is what it was; so something else is not.
        subject = Subject.MODE
    texts = [_rename(finding), *_opening(finding.old, finding.new), *_attributes(finding)]
    if not any(texts) and not content:
        texts.append(b"extended attributes changed")
    return Lead(subject, b"".join(text + b"\n" for text in texts if text) + content)


def _leads(finding: Finding) -> Iterator[Lead]:
    """Ask about a rename and about attributes before the hunks."""
    if finding.old_path is not None:
        yield Lead(Subject.RENAME, _rename(finding) + b"\n")
    attributes = list(_attributes(finding))
    if attributes:
        yield Lead(Subject.MODE, b"".join(line + b"\n" for line in attributes))


def _rename(finding: Finding) -> bytes:
    if finding.old_path is None:
        return b""
    return b"rename from %s\nrename to %s" % (quote_name(finding.old_path), quote_name(finding.path))


def _opening(old: Side | None, new: Side | None) -> Iterator[bytes]:
    """Say what appeared or disappeared."""
    if old is None and new is not None:
        yield b"new %s mode %o" % (_type(new), new.mode)
    elif new is None and old is not None:
        yield b"deleted %s mode %o" % (_type(old), old.mode)
    elif old is not None and new is not None and _type(old) != _type(new):
        yield b"%s becomes %s" % (_type(old), _type(new))


def _attributes(finding: Finding) -> Iterator[bytes]:
    """Say how mode and owner changed, of what was there before."""
    old, new = finding.old, finding.new
    if old is None or new is None:
        return
    if old.mode != new.mode:
        yield b"old mode %o" % old.mode
        yield b"new mode %o" % new.mode
    if (old.uid, old.gid) != (new.uid, new.gid):
        yield b"old owner %d:%d" % (old.uid, old.gid)
        yield b"new owner %d:%d" % (new.uid, new.gid)


def _type(side: Side) -> bytes:
    return _TYPES.get(stat.S_IFMT(side.mode), b"object")
