"""What a person is offered of each kind of change."""

import stat

import pytest

from sandboxfs.commit.pick import LARGEST_TEXT, OfferedChange, OfferedPart, Subject, offer
from sandboxfs.review.change import ChangeKind, PathChange, Version

FILE, LINK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
FOLDER, FIFO = stat.S_IFDIR | 0o755, stat.S_IFIFO | 0o600
GONE = Subject.DELETION


def side(
    content: bytes = b"", mode: int = FILE, *, target: bytes = b"", size: int | None = None, uid: int = 0
) -> Version:
    length = len(content) if size is None else size
    return Version(mode, length, uid, 0, 0, 0, 0, 0, 1, target=target, read=lambda: content)


def finding(kind: ChangeKind, old: Version | None, new: Version | None, **more: bytes) -> PathChange:
    return PathChange(b"a", kind, old, new, None, b"a", old_path=more.get("old_path"))


def whole(item: OfferedChange) -> OfferedPart:
    """The one question about a change that is offered as a whole."""
    (part,) = item.parts
    assert part.hunk is None
    return part


def leads(item: OfferedChange) -> list[OfferedPart]:
    """The parts that are asked about before the hunks."""
    return [part for part in item.parts if part.hunk is None]


def lines(item: OfferedChange) -> list[tuple[bytes, ...]]:
    """The lines of each hunk."""
    return [part.hunk.lines for part in item.parts if part.hunk is not None]


def test_modified_text_is_offered_by_hunk() -> None:
    item = offer(finding(ChangeKind.MODIFIED, side(b"x\n"), side(b"y\n")))
    assert leads(item) == []
    assert lines(item) == [(b"-x\n", b"+y\n")]
    assert (item.old, item.new, item.parts[0].subject) == (b"x\n", b"y\n", Subject.HUNK)
    assert item.header == (b"diff --git a/a b/a", b"--- a/a", b"+++ b/a")


def test_added_text_is_one_hunk_called_an_addition() -> None:
    item = offer(finding(ChangeKind.ADDED, None, side(b"x\ny", stat.S_IFREG | 0o755)))
    assert lines(item) == [(b"+x\n", b"+y")]
    assert [part.subject for part in item.parts] == [Subject.ADDITION]
    assert item.header == (b"diff --git a/a b/a", b"new file mode 100755", b"--- /dev/null", b"+++ b/a")


def test_mode_and_owner_that_changed_with_the_text_are_a_question_of_their_own() -> None:
    item = offer(finding(ChangeKind.MODIFIED, side(b"x\n"), side(b"y\n", stat.S_IFREG | 0o600, uid=7)))
    text = b"old mode 100644\nnew mode 100600\nold owner 0:0\nnew owner 7:0\n"
    assert leads(item) == [OfferedPart(Subject.MODE, text)]
    assert len(lines(item)) == 1


def test_rename_with_changes_is_asked_before_mode_and_hunks() -> None:
    found = finding(ChangeKind.RENAMED, side(b"x\n"), side(b"y\n", stat.S_IFREG | 0o755), old_path=b"o\n")
    item = offer(found)
    assert [part.subject for part in leads(item)] == [Subject.RENAME, Subject.MODE]
    assert item.parts[0].text == b'rename from "o\\n"\nrename to a\n'
    assert item.header == (b'diff --git "a/o\\n" b/a', b'--- "a/o\\n"', b"+++ b/a")


@pytest.mark.parametrize(
    ("kind", "old", "new", "subject", "text"),
    [
        (
            ChangeKind.DELETED,
            side(b"x\n"),
            None,
            Subject.DELETION,
            b"deleted file mode 100644\n@@ -1 +0,0 @@\n-x\n",
        ),
        (ChangeKind.DELETED, side(), None, GONE, b"deleted file mode 100644\n"),
        (ChangeKind.DELETED, side(mode=FOLDER), None, GONE, b"deleted directory mode 40755\n"),
        (ChangeKind.ADDED, None, side(), Subject.ADDITION, b"new file mode 100644\n"),
        (ChangeKind.ADDED, None, side(mode=FOLDER), Subject.ADDITION, b"new directory mode 40755\n"),
        (ChangeKind.ADDED, None, side(mode=FIFO), Subject.ADDITION, b"new fifo mode 10600\n"),
        (
            ChangeKind.ADDED,
            None,
            side(mode=LINK, target=b"/\xff"),
            Subject.ADDITION,
            b'new symlink mode 120777\n+symlink to "/\\377"\n',
        ),
        (
            ChangeKind.ADDED,
            None,
            side(b"\0"),
            Subject.ADDITION,
            b"new file mode 100644\nBinary files differ: 0 bytes before, 1 after\n",
        ),
        (
            ChangeKind.MODIFIED,
            side(b"text"),
            side(b"\0", stat.S_IFREG | 0o755),
            Subject.CHANGE,
            b"old mode 100644\nnew mode 100755\nBinary files differ: 4 bytes before, 1 after\n",
        ),
        (
            ChangeKind.MODIFIED,
            side(mode=LINK, target=b"x"),
            side(mode=LINK, target=b"y"),
            Subject.CHANGE,
            b"-symlink to x\n+symlink to y\n",
        ),
        (
            ChangeKind.MODIFIED,
            side(size=1),
            side(size=LARGEST_TEXT + 1),
            Subject.CHANGE,
            b"-file of 1 bytes\n+file of %d bytes\n" % (LARGEST_TEXT + 1),
        ),
        (
            ChangeKind.MODE,
            side(b"x"),
            side(b"x", stat.S_IFREG | 0o755),
            Subject.MODE,
            b"old mode 100644\nnew mode 100755\n",
        ),
        (ChangeKind.MODE, side(b"x"), side(b"x"), Subject.MODE, b"extended attributes changed\n"),
        (ChangeKind.MODIFIED, side(b"x"), side(b"x"), Subject.MODE, b"extended attributes changed\n"),
        (
            ChangeKind.TYPE,
            side(b"x"),
            side(mode=LINK, target=b"y"),
            Subject.TYPE,
            b"file becomes symlink\nold mode 100644\nnew mode 120777\n-file of 1 bytes\n+symlink to y\n",
        ),
        (
            ChangeKind.TYPE,
            side(mode=FIFO),
            side(mode=FOLDER),
            Subject.TYPE,
            b"fifo becomes directory\nold mode 10600\nnew mode 40755\n",
        ),
    ],
)
def test_what_has_no_hunks_is_offered_as_a_whole(
    kind: ChangeKind, old: Version | None, new: Version | None, subject: Subject, text: bytes
) -> None:
    assert whole(offer(finding(kind, old, new))) == OfferedPart(subject, text)


@pytest.mark.parametrize("content", [b"text\n", b"\0", b""])
def test_rename_without_changes_is_one_question(content: bytes) -> None:
    found = finding(ChangeKind.RENAMED, side(content), side(content), old_path=b"old")
    assert whole(offer(found)) == OfferedPart(Subject.RENAME, b"rename from old\nrename to a\n")


@pytest.mark.parametrize("mode", [FOLDER, LINK, FIFO])
def test_rename_of_what_is_no_file_is_one_question(mode: int) -> None:
    there = side(mode=mode, target=b"there")
    found = finding(ChangeKind.RENAMED, there, there, old_path=b"old")
    assert whole(offer(found)) == OfferedPart(Subject.RENAME, b"rename from old\nrename to a\n")


def test_content_of_a_mode_change_or_a_very_large_file_is_not_read() -> None:
    def unreadable() -> bytes:
        raise AssertionError("must not be read")

    old = Version(FILE, 1, 0, 0, 0, 0, 0, 0, 1, read=unreadable)
    new = Version(stat.S_IFREG | 0o755, 1, 0, 0, 0, 0, 0, 0, 1, read=unreadable)
    large = Version(FILE, LARGEST_TEXT + 1, 0, 0, 0, 0, 0, 0, 1, read=unreadable)
    assert whole(offer(finding(ChangeKind.MODE, old, new))).subject is Subject.MODE
    assert whole(offer(finding(ChangeKind.MODIFIED, old, large))).subject is Subject.CHANGE


def test_notes_are_shown_under_the_name() -> None:
    item = offer(finding(ChangeKind.ADDED, None, side(b"x\n")), notes=(b"flags: runs by itself",))
    assert item.header[1] == b"flags: runs by itself"
