"""What a scan finds after the sandbox did something, while the host did nothing."""

import os
import stat

from sandboxfs.review.change import ChangeKind
from sandboxfs.review.scan import scan
from sandboxfs.upper.sandbox_layers import LayerPaths, open_layers
from tests.support.syscalls import RENAME_EXCHANGE
from tests.support.tree import Directory, Fifo, File, Symlink
from tests.unit.conftest import Review


def test_a_sandbox_that_did_nothing_has_no_findings(review: Review) -> None:
    assert review({"a": "1\n", "d/b": "2\n"}).found() == []


def test_a_new_file_is_added(review: Review) -> None:
    sandbox = review({})
    sandbox.create("a", b"new\n", mode=0o640)
    (finding,) = sandbox.findings()
    assert (finding.path, finding.kind, finding.old, finding.lower) == (b"a", ChangeKind.ADDED, None, None)
    assert finding.new is not None
    assert stat.S_IMODE(finding.new.mode) == 0o640
    assert finding.lower_path == b"a"


def test_the_sides_of_a_finding_can_be_read(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"new and longer\n")
    with sandbox.layers() as layers:
        (finding,) = scan(layers)
        assert finding.old is not None
        assert finding.new is not None
        assert finding.lower is not None
        contents = finding.old.read(), finding.new.read(), finding.lower.read()
        assert contents == (b"old\n", b"new and longer\n", b"old\n")


def test_a_written_file_is_modified(review: Review) -> None:
    sandbox = review({"a": "old\n", "d/b": "old\n"})
    sandbox.write("d/b", b"new\n")
    assert sandbox.found() == ["modified d/b"]


def test_a_file_of_the_same_size_and_with_its_times_put_back_is_modified(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    before = sandbox.lstat("a")
    sandbox.write("a", b"new\n")
    sandbox.utime("a", before.st_atime_ns, before.st_mtime_ns)
    assert sandbox.found() == ["modified a"]


def test_a_large_file_is_compared_with_the_workspace(review: Review) -> None:
    content = b"x" * (1 << 21)
    sandbox = review({"same": content, "changed": content, "grown": content})
    sandbox.write("same", content, flags=0)
    sandbox.write("changed", b"y", flags=0)
    sandbox.append("grown", b"y")
    assert sandbox.found() == ["modified changed", "modified grown"]


def test_a_touched_file_is_no_change(review: Review) -> None:
    sandbox = review({"a": "old\n", "d/": Directory()})
    sandbox.utime("a", 1, 1)
    sandbox.utime("d", 1, 1)
    assert os.listdir(sandbox.upper)
    assert sandbox.found() == []


def test_a_file_written_back_as_it_was_is_no_change(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"new\n")
    sandbox.write("a", b"old\n")
    assert sandbox.found() == []


def test_a_file_deleted_and_made_again_as_it_was_is_no_change(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.unlink("a")
    sandbox.create("a", b"old\n")
    assert sandbox.found() == []


def test_a_file_replaced_by_a_renamed_one_is_modified(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.create("a.tmp", b"new\n")
    sandbox.rename("a.tmp", "a")
    assert sandbox.found() == ["modified a"]


def test_permissions_alone_are_a_change_of_mode(review: Review) -> None:
    sandbox = review({"a": "old\n", "d/": Directory()})
    sandbox.chmod("a", 0o755)
    sandbox.chmod("d", 0o700)
    assert sandbox.found() == ["mode a", "mode d/"]


def test_a_file_given_away_is_a_change_of_mode(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    # Only root gives files away; anybody may hand them to a group they are in.
    group = 1234 if os.geteuid() == 0 else next((g for g in os.getgroups() if g != os.getegid()), None)
    if group is not None:
        sandbox.chown("a", -1, group)
    assert sandbox.found() == ([] if group is None else ["mode a"])


def test_extended_attributes_alone_are_a_change_of_mode(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": File("b", xattrs={"user.x": b"1"}), "same": "1"})
    sandbox.setxattr("a", "user.x", b"1")
    sandbox.removexattr("b", "user.x")
    sandbox.utime("same", 1, 1)
    assert sandbox.found() == ["mode a", "mode b"]


def test_the_permissions_of_the_workspace_itself_can_change(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.chmod(".", 0o700)
    assert sandbox.found() == ["mode ./"]


def test_a_symlink_led_elsewhere_is_modified(review: Review) -> None:
    sandbox = review({"link": Symlink("a")})
    sandbox.unlink("link")
    sandbox.symlink("b", "link")
    (finding,) = sandbox.findings()
    assert finding.kind is ChangeKind.MODIFIED
    assert finding.old is not None
    assert finding.new is not None
    assert (finding.old.target, finding.new.target) == (b"a", b"b")


def test_a_symlink_led_to_the_same_is_no_change(review: Review) -> None:
    sandbox = review({"link": Symlink("a")})
    sandbox.unlink("link")
    sandbox.symlink("a", "link")
    assert sandbox.found() == []


def test_a_special_file_is_added_and_deleted(review: Review) -> None:
    sandbox = review({"old": Fifo()})
    sandbox.mkfifo("new")
    sandbox.unlink("old")
    assert sandbox.found() == ["added new", "deleted old"]


def test_a_deleted_file_is_deleted(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": "b"})
    sandbox.unlink("a")
    assert sandbox.found() == ["deleted a"]


def test_a_file_made_and_deleted_again_is_no_change(review: Review) -> None:
    sandbox = review({"d/a": "old\n"})
    sandbox.create("d/b")
    sandbox.unlink("d/b")
    assert sandbox.found() == []


def test_a_deleted_directory_is_deleted_with_all_in_it(review: Review) -> None:
    sandbox = review({"d/a": "1", "d/e/b": "2", "d/link": Symlink("a"), "keep": "3"})
    sandbox.remove_tree("d")
    assert sandbox.found() == ["deleted d/", "deleted d/a", "deleted d/e/", "deleted d/e/b", "deleted d/link"]


def test_a_new_directory_is_added_with_all_in_it(review: Review) -> None:
    sandbox = review({})
    sandbox.mkdir("d")
    sandbox.mkdir("d/e")
    sandbox.create("d/e/a", b"1")
    assert sandbox.found() == ["added d/", "added d/e/", "added d/e/a"]


def test_a_directory_made_anew_has_lost_what_was_in_the_old_one(review: Review) -> None:
    sandbox = review({"d/a": "1", "d/b": "2", "d/e/c": "3", "d/e/f": "4"})
    sandbox.remove_tree("d")
    sandbox.mkdir("d")
    sandbox.create("d/a", b"changed")
    sandbox.mkdir("d/e")
    sandbox.create("d/e/new")
    assert sandbox.found() == [
        "modified d/a",
        "deleted d/b",
        "deleted d/e/c",
        "deleted d/e/f",
        "added d/e/new",
    ]


def test_a_directory_made_anew_as_it_was_is_no_change(review: Review) -> None:
    sandbox = review({"d/a": "1"})
    sandbox.remove_tree("d")
    sandbox.mkdir("d")
    sandbox.create("d/a", b"1")
    assert sandbox.found() == []


def test_a_file_in_place_of_a_directory_is_a_change_of_type(review: Review) -> None:
    sandbox = review({"d/a": "1", "d/e/b": "2"})
    sandbox.remove_tree("d")
    sandbox.create("d", b"file\n")
    assert sandbox.found() == ["type d", "deleted d/a", "deleted d/e/", "deleted d/e/b"]


def test_a_directory_in_place_of_a_file_is_a_change_of_type(review: Review) -> None:
    sandbox = review({"a": "1"})
    sandbox.unlink("a")
    sandbox.mkdir("a")
    sandbox.create("a/b", b"2")
    assert sandbox.found() == ["type a/", "added a/b"]


def test_a_directory_in_place_of_a_symlink_to_one_is_a_change_of_type(review: Review) -> None:
    sandbox = review({"d/x": "1", "link": Symlink("d")})
    sandbox.unlink("link")
    sandbox.mkdir("link")
    sandbox.create("link/x", b"2")
    assert sandbox.found() == ["type link/", "added link/x"]


def test_a_symlink_in_place_of_a_directory_is_a_change_of_type(review: Review) -> None:
    sandbox = review({"d/x": "1", "e/x": "1"})
    sandbox.remove_tree("d")
    sandbox.symlink("e", "d")
    assert sandbox.found() == ["type d", "deleted d/x"]


def test_names_of_any_bytes_are_found(review: Review) -> None:
    names: list[str | bytes] = ["a b", "new\nline", '"quoted"', b"\xff\xfe", "\\back", "é"]
    sandbox = review(dict.fromkeys(names, "old"))
    for name in names:
        sandbox.write(name, b"changed")
    assert {finding.path for finding in sandbox.findings()} == {os.fsencode(name) for name in names}


def test_findings_are_sorted_by_path_and_the_same_each_time(review: Review) -> None:
    sandbox = review({f"d{n % 7}/f{n}": "old" for n in range(50)})
    for n in reversed(range(50)):
        sandbox.write(f"d{n % 7}/f{n}", b"changed")
    found = sandbox.findings()
    assert [finding.path for finding in found] == sorted(finding.path for finding in found)
    assert sandbox.found() == sandbox.found()


def test_only_what_is_at_and_below_the_paths_asked_for_is_found(review: Review) -> None:
    sandbox = review({"a": "1", "ab": "1", "d/a": "1", "d/e/a": "1"})
    for path in ("a", "ab", "d/a", "d/e/a"):
        sandbox.write(path, b"changed")
    assert sandbox.found(b"a") == ["modified a"]
    assert sandbox.found(b"d") == ["modified d/a", "modified d/e/a"]
    assert sandbox.found(b"d/e", b"ab") == ["modified ab", "modified d/e/a"]
    assert sandbox.found(b"elsewhere") == []
    assert len(sandbox.found(b"")) == 4


def test_deep_trees_are_found_with_few_descriptors(review: Review) -> None:
    sandbox = review({"top": "1"})
    path = "d"
    for _ in range(300):
        sandbox.mkdir(path)
        path += "/d"
    sandbox.create(path, b"deep")
    before = len(os.listdir("/proc/self/fd"))
    with sandbox.layers() as layers:
        found = scan(layers)
        assert len(os.listdir("/proc/self/fd")) - before < 150
    assert len(found) == 301
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_programs_locked_themselves_out_of_is_found(review: Review) -> None:
    sandbox = review({})
    sandbox.mkdir("locked")
    sandbox.mkdir("locked/inner")
    sandbox.create("locked/a", b"1")
    sandbox.create("closed", b"2")
    sandbox.chmod("closed", 0)
    sandbox.chmod("locked", 0)
    with sandbox.layers() as layers:
        found = {finding.path: finding for finding in scan(layers)}
        assert sorted(found) == [b"closed", b"locked", b"locked/a", b"locked/inner"]
        for path, content in ((b"closed", b"2"), (b"locked/a", b"1")):
            side = found[path].new
            assert side is not None
            assert side.read() == content
    assert stat.S_IMODE(sandbox.lstat("locked").st_mode) == 0
    assert stat.S_IMODE(sandbox.lstat("closed").st_mode) == 0
    sandbox.chmod("locked", 0o700)


def test_a_sandbox_without_a_baseline_is_compared_with_the_workspace(review: Review) -> None:
    sandbox = review({"a": "old\n", "d/b": "old\n", "gone": "1"})
    sandbox.write("a", b"changed\n")
    sandbox.chmod("d/b", 0o600)
    sandbox.create("new")
    paths = LayerPaths([sandbox.lower], sandbox.upper, sandbox.index, sandbox.upper / "no such directory")
    with open_layers(paths) as layers:
        found = [(finding.kind.value, finding.path, finding.conflict) for finding in scan(layers)]
    assert found == [("modified", b"a", None), ("mode", b"d/b", None), ("added", b"new", None)]


def test_exchanged_files_are_both_modified(review: Review) -> None:
    sandbox = review({"a": "1\n", "b": "2 longer\n"})
    sandbox.rename("a", "b", RENAME_EXCHANGE)
    assert sandbox.found() == ["modified a", "modified b"]
