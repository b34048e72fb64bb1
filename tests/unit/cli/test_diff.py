"""`sandboxfs diff` as a person or a program asks for it, without a mount."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from sandboxfs.cli.main import main
from tests.support.reviewed import Stored, apply_patch, as_git_sees, host_states, view_states
from tests.support.tree import Directory, Fifo, File, Symlink, Tree

Make = Callable[[Tree], Stored]


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def changes(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.out)["changes"]
        return found


class Diff(Protocol):
    def __call__(self, *words: str) -> Answer: ...


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Stored] = []

    def make(tree: Tree) -> Stored:
        made.append(Stored(tmp_path, tree))
        monkeypatch.chdir(made[-1].host)
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.abandon()


@pytest.fixture
def diff(capsysbinary: pytest.CaptureFixture[bytes]) -> Diff:
    def run(*words: str) -> Answer:
        status = main(["diff", *words])
        out, err = capsysbinary.readouterr()
        return Answer(status, os.fsdecode(out), os.fsdecode(err))

    return run


# Patches


def test_a_sandbox_without_changes_shows_nothing(stored: Make, diff: Diff) -> None:
    stored({"a": "1\n"})
    assert diff() == diff("--stat") == diff("--name-status") == diff("--exit-code") == (0, "", "")
    assert diff("--json").changes == []


def test_a_change_is_shown_as_a_patch(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n2\n3\n"})
    sandbox.write("a", b"1\ntwo\n3\n")
    answer = diff()
    assert answer.lines[0] == "diff --git a/a b/a"
    assert answer.lines[-5:] == ["@@ -1,3 +1,3 @@", " 1", "-2", "+two", " 3"]
    assert (answer.status, answer.err) == (0, "")


def test_the_number_of_common_lines_can_be_chosen(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n2\n3\n"})
    sandbox.write("a", b"1\ntwo\n3\n")
    assert diff("-U", "0").lines[-3:] == ["@@ -2 +2 @@", "-2", "+two"]
    assert diff("-U0").out == diff("--unified=0").out
    assert diff("-U", "-1").status == diff("-Ux").status == 2


def test_binary_files_are_said_to_differ_or_written_out(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": b"\0old"})
    sandbox.write("a", b"\0new")
    answer = diff()
    assert answer.lines == [
        "# Binary files a/a and b/a differ",
        "# sandboxfs: commit applies 1 change not in this patch: 'a'",
    ]
    assert "note: 1 binary file that the patch does not carry: 'a'; --binary writes it" in answer.err
    assert "GIT binary patch" in diff("--binary").out
    assert "binary" not in diff("--binary").err


def test_a_patch_is_shown_of_the_paths_asked_for(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n", "d/b": "2\n", "d/c": "3\n"})
    for path in ("a", "d/b", "d/c"):
        sandbox.write(path, b"changed\n")
    assert diff("--name-status", "d").lines == ["M\td/b", "M\td/c"]
    assert diff("--name-status", "a", str(sandbox.host / "d/c")).lines == ["M\ta", "M\td/c"]
    assert diff("--name-status", "d/").out == diff("--name-status", "d").out


def test_a_path_without_changes_shows_nothing_and_says_so(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n", "b": "2\n"})
    sandbox.write("a", b"changed\n")
    for path in ("b", "nowhere/at/all"):
        note = f"note: the sandbox changed nothing at '{path}'\n"
        assert diff(path) == diff(path, "--exit-code") == diff(path, "--stat") == (0, "", note)
    shown = diff("--name-status", "a", "b")
    assert (shown.lines, shown.err) == (["M\ta"], "note: the sandbox changed nothing at 'b'\n")


def test_a_path_outside_the_workspace_is_an_error(stored: Make, diff: Diff) -> None:
    stored({"a": "1\n"})
    answer = diff("/etc/passwd")
    assert (answer.status, answer.out) == (2, "")
    assert "'/etc/passwd' is not in the workspace" in answer.err
    assert diff("../..").status == 2


def test_changes_make_the_exit_status_one_when_asked(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n"})
    sandbox.write("a", b"changed\n")
    assert [diff("--exit-code", form).status for form in ("--stat", "--name-status", "--json")] == [1, 1, 1]
    assert diff("--exit-code").status == 1
    assert diff().status == 0


def test_no_sandbox_is_an_error(diff: Diff) -> None:
    assert diff().status == 3


# Summaries


def test_a_summary_has_a_line_for_each_change(stored: Make, diff: Diff) -> None:
    sandbox = stored(
        {"a": "1\n2\n", "bin": b"\0", "gone": "1\n", "run": File("x\n"), "full/x": "1\n", "hollow/": ""}
    )
    sandbox.write("a", b"1\nnew\n")
    sandbox.write("bin", b"\0\0")
    sandbox.unlink("gone")
    sandbox.chmod("run", 0o700)
    sandbox.rename("full", "moved")
    sandbox.rmdir("hollow")
    sandbox.mkdir("new")
    sandbox.mkfifo("pipe")
    assert diff("--stat").lines == [
        " a               | 2 +-",
        " bin             | Bin 1 -> 2 bytes",
        " gone            | 1 -",
        " hollow/         | directory deleted",
        " full/ => moved/ | directory renamed, 1 file",
        " new/            | new directory",
        " pipe            | FIFO added  fifo",
        " run             | mode 644 -> 700  executable",
        " 5 files changed, 1 insertion(+), 2 deletions(-)",
    ]
    assert diff("--name-status").lines == [
        "M\ta",
        "M\tbin",
        "D\tgone",
        "D\thollow/",
        "R\tfull/\tmoved/",
        "A\tnew/",
        "A\tpipe\t[fifo]",
        "M\trun\t[mode 644 -> 700, executable]",
    ]


def test_what_a_patch_cannot_carry_is_named(stored: Make, diff: Diff) -> None:
    sandbox = stored({"pipe": Fifo(), "d/": Directory(), "a": "1\n"})
    sandbox.unlink("pipe")
    sandbox.chmod("d", 0o700)
    sandbox.chmod("a", 0o600)
    assert diff().lines == ["# sandboxfs: commit applies 3 changes not in this patch: 'a', 'd', 'pipe'"]


def test_changed_types_are_named(stored: Make, diff: Diff) -> None:
    sandbox = stored({"was-dir/x": "1\n", "was-file": "1\n", "was-link": Symlink("a")})
    sandbox.remove_tree("was-dir")
    sandbox.create("was-dir", b"file\n")
    sandbox.unlink("was-file")
    sandbox.mkdir("was-file")
    sandbox.unlink("was-link")
    sandbox.create("was-link", b"1\n")
    assert diff("--name-status").lines == ["T\twas-dir", "D\twas-dir/x", "T\twas-file/", "T\twas-link"]
    rows = diff("--stat").lines
    assert rows[0].endswith("| was a directory, is a file")
    assert rows[2].endswith("| was a file, is a directory")


def test_renames_can_be_left_out_of_every_form(stored: Make, diff: Diff) -> None:
    sandbox = stored({"d/x": "1\n", "f": "2\n"})
    sandbox.rename("d", "e")
    sandbox.rename("f", "g")
    assert diff("--name-status").lines == ["R\td/\te/", "R\tf\tg"]
    assert diff("--name-status", "--no-renames").lines == ["D\td/x", "A\te/x", "D\tf", "A\tg"]
    assert [change["kind"] for change in diff("--json", "--no-renames").changes] == [
        "deleted",
        "added",
        "deleted",
        "added",
    ]
    assert "rename" not in diff("--no-renames").out


def test_odd_names_are_quoted_in_summaries(stored: Make, diff: Diff) -> None:
    sandbox = stored({})
    sandbox.create("new\nline")
    sandbox.create(b"\xff")
    assert diff("--name-status").lines == ['A\t"new\\nline"', 'A\t"\\377"']


# Conflicts and flags


def test_conflicts_are_told_in_every_form(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n"})
    sandbox.write("a", b"sandbox\n")
    (sandbox.host / "a").write_text("host\n")
    told = "conflict: 'a': changed in the workspace since the sandbox changed it\n"
    assert diff().err == told
    assert diff("--stat") == (
        0,
        " a | 2 +-  conflict\n 1 file changed, 1 insertion(+), 1 deletion(-)\n",
        told,
    )
    assert diff("--name-status") == (0, "M\ta\t[conflict]\n", told)
    (change,) = diff("--json").changes
    assert change["conflict"] == "changed in the workspace since the sandbox changed it"


def test_many_conflicts_are_not_all_named(stored: Make, diff: Diff) -> None:
    sandbox = stored({f"f{number:02}": "1\n" for number in range(30)})
    for number in range(30):
        sandbox.write(f"f{number:02}", b"sandbox\n")
        (sandbox.host / f"f{number:02}").write_text("host\n")
    told = diff("--stat").err.splitlines()
    assert len(told) == 21
    assert told[-1] == "note: … and 10 more; --json has all"


def test_what_the_host_put_into_a_deleted_directory_is_shown_and_not_in_the_patch(
    stored: Make, diff: Diff
) -> None:
    sandbox = stored({"d/a": "1\n"})
    sandbox.remove_tree("d")
    (sandbox.host / "d/new").write_text("host\n")
    assert diff("--name-status").lines == ["D\td/\t[conflict]", "D\td/a", "D\td/new\t[conflict]"]
    assert "d/new" not in diff().out


def test_what_to_look_at_twice_is_told_in_every_form(stored: Make, diff: Diff) -> None:
    sandbox = stored({})
    sandbox.create(".envrc", b"export A=1\n")
    sandbox.symlink("/etc/passwd", "out")
    assert diff().err.splitlines() == ["look at: '.envrc': runs", "look at: 'out': outside"]
    assert diff("--name-status").lines == ["A\t.envrc\t[runs]", "A\tout\t[outside]"]
    assert [change["flags"] for change in diff("--json").changes] == [["runs"], ["outside"]]


def test_extended_attributes_are_told_beside_every_other_change(stored: Make, diff: Diff) -> None:
    names = ("alone", "edited", "gone", "made", "moved", "old", "run")
    sandbox = stored(dict.fromkeys(names, "1\n"))
    for name in ("alone", "edited", "made", "moved", "run"):
        sandbox.setxattr(name, "user.colour", b"red")
    sandbox.write("edited", b"2\n")
    sandbox.write("old", b"2\n")
    sandbox.unlink("gone")
    sandbox.chmod("made", 0o600)
    sandbox.chmod("run", 0o755)
    sandbox.rename("moved", "new")
    assert diff("--name-status").lines == [
        "M\talone\t[extended attributes]",
        "M\tedited\t[extended attributes]",
        "D\tgone",
        "M\tmade\t[mode 644 -> 600, extended attributes]",
        "R\tmoved\tnew\t[extended attributes]",
        "M\told",
        "M\trun\t[mode 644 -> 755, extended attributes, executable]",
    ]


def test_the_last_line_of_a_patch_tells_attributes_that_it_does_not_carry(stored: Make, diff: Diff) -> None:
    sandbox = stored({"edited": "1\n", "moved": "1\n", "run": "1\n"})
    for name in ("edited", "moved", "run"):
        sandbox.setxattr(name, "user.colour", b"red")
    sandbox.write("edited", b"2\n")
    sandbox.rename("moved", "new")
    sandbox.chmod("run", 0o755)
    assert diff().lines[-1] == (
        "# sandboxfs: commit applies 3 changes not in this patch: 'edited' (extended attributes),"
        " 'new' (extended attributes), 'run' (extended attributes)"
    )


def test_an_old_content_that_nobody_has_any_more_is_told(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": b"1\n" * (1 << 20)})
    sandbox.append("a", b"sandbox\n")
    (sandbox.host / "a").write_text("host\n")
    answer = diff()
    assert answer.lines[:1] == ["# Binary files a/a and b/a differ"]
    assert answer.lines[1:] == ["# sandboxfs: commit applies 1 change not in this patch: 'a'"]
    assert "how it was is not known any more" in answer.err
    (change,) = diff("--json").changes
    assert change["hunks"] == []
    assert "not known any more" in str(change["problem"])
    assert diff("--stat").lines[0] == " a | Bin 2097152 -> 2097160 bytes  conflict"


# Ignored files


IGNORING: Tree = {".gitignore": "*.log\nbuild/\n", "src/a": "1\n"}


def test_ignored_files_are_folded_into_one_line_for_each_directory(stored: Make, diff: Diff) -> None:
    sandbox = stored(IGNORING)
    sandbox.write("src/a", b"changed\n")
    sandbox.create("src/x.log")
    sandbox.create("src/y.log")
    sandbox.mkdir("build")
    sandbox.mkdir("build/deep")
    sandbox.create("build/deep/object")
    assert diff("--name-status").lines == [
        "M\tsrc/a",
        "!\tbuild/\t[1 ignored change]",
        "!\tsrc/\t[2 ignored changes]",
    ]
    assert diff("--stat").lines[1:3] == [" build/ | 1 ignored change", " src/   | 2 ignored changes"]
    answer = diff()
    assert "log" not in answer.out
    note = "note: left out of commit: 3 ignored changes in 'build', 'src'; --ignored takes them\n"
    assert answer.err == diff("--stat").err == diff("--name-status").err == note
    assert diff("--name-status", "--ignored").lines == [
        "A\tbuild/deep/object",
        "M\tsrc/a",
        "A\tsrc/x.log",
        "A\tsrc/y.log",
    ]
    assert diff("--ignored").out.count("diff --git") == 4


def test_the_json_counts_what_is_left_out_and_has_it_as_changes_when_asked(stored: Make, diff: Diff) -> None:
    sandbox = stored({**IGNORING, ".git/HEAD": "ref\n"})
    sandbox.create("x.log", b"1\n")
    sandbox.write(".git/HEAD", b"other\n")
    found = json.loads(diff("--json").out)
    assert (found["changes"], found["left_out"]) == ([], {"ignored": 1, "git": 1})
    assert found["folded"] == [
        {"path": ".", "reason": "ignored", "changes": 1, "conflicts": 0, "flags": {}},
        {"path": ".git", "reason": "git", "changes": 1, "conflicts": 0, "flags": {}},
    ]
    (change,) = diff("--json", "--ignored").changes
    assert (change["path"], bool(change["hunks"])) == ("x.log", True)
    assert len(diff("--json", "--ignored", "--include-git").changes) == 2


def test_the_ignore_files_of_the_view_decide_nothing(stored: Make, diff: Diff) -> None:
    sandbox = stored({".git/info/exclude": "", "a": "1\n", "d/.gitignore": "*.log\n"})
    sandbox.write(".git/info/exclude", b"*\n!*/\n")
    sandbox.create(".gitignore", b"*\n")
    sandbox.create("new", b"1\n")
    sandbox.write("a", b"2\n")
    sandbox.rename("d", "e")
    sandbox.create("e/x.log")
    assert diff("--name-status").lines == [
        "A\t.gitignore",
        "M\ta",
        "R\td/\te/",
        "A\te/x.log",
        "A\tnew",
        "!\t.git/\t[1 change]",
    ]
    assert diff().out.count("diff --git") == 5


def test_the_last_line_tells_what_commit_applies_and_no_form_shows(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n", "bin": b"\0", "d/x": "1\n", "d/y": "1\n"})
    assert not diff("--name-status").out
    sandbox.write("a", b"2\n")
    assert "#" not in diff().out
    sandbox.write("bin", b"\0\0")
    sandbox.mkfifo("pipe")
    last = "# sandboxfs: commit applies 2 changes not in this patch: 'pipe', 'bin'"
    assert diff().lines[-1] == last
    assert diff("--binary").lines[-1] == "# sandboxfs: commit applies 1 change not in this patch: 'pipe'"
    sandbox.rename("d", "e")
    sandbox.write("e/x", b"2\n")
    needed = "# sandboxfs: commit applies 1 change not in this list: 'e'"
    assert diff("--name-status", "e/x").lines == ["M\te/x", needed]
    assert json.loads(diff("--json", "e/x").out)["also_applied"] == ["e"]


def test_the_last_line_tells_of_attributes_and_of_repositories_that_come_along(
    stored: Make, diff: Diff
) -> None:
    sandbox = stored({"a": "1\n", "b": "1\n", "sub/.git/HEAD": "ref\n", "sub/x": "1\n"})
    sandbox.write("b", b"2\n")
    sandbox.chmod("b", 0o755)
    assert diff().lines[-1] == "+2"
    sandbox.write("a", b"2\n")
    sandbox.chmod("a", 0o666)
    sandbox.rename("sub", "sub2")
    assert diff().lines[-1] == (
        "# sandboxfs: commit applies 2 changes not in this patch: 'a' (mode 644 -> 666), "
        "'sub2/.git' (comes along)"
    )


@pytest.mark.parametrize("command", [("git", "apply", "-"), ("patch", "-p1", "-s")], ids=["git", "patch"])
@pytest.mark.parametrize("last", ["text", "rename", "mode", "link", "empty", "unterminated"])
def test_tools_that_apply_the_patch_pass_over_its_last_line(
    stored: Make, diff: Diff, tmp_path: Path, command: tuple[str, ...], last: str
) -> None:
    sandbox = stored({"text": "1\n", "z": "1\n2\n3\n4\n"})
    sandbox.mkdir("a-directory")
    sandbox.write("text", b"2\n")
    match last:
        case "rename":
            sandbox.rename("z", "zz")
        case "mode":
            sandbox.chmod("z", 0o755)
        case "link":
            sandbox.symlink("text", "zz")
        case "empty":
            sandbox.create("zz")
        case "unterminated":
            sandbox.write("z", b"1")
        case _:
            pass
    text = diff().out
    assert text.splitlines()[-1].startswith("# sandboxfs: commit applies 1 change")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "text").write_text("1\n")
    (copy / "z").write_text("1\n2\n3\n4\n")
    apply_patch(os.fsencode(text), copy, command)
    sandbox.rmdir("a-directory")
    assert as_git_sees(host_states(copy)) == as_git_sees(view_states(sandbox))


def test_the_files_of_git_are_folded(stored: Make, diff: Diff) -> None:
    sandbox = stored({".git/HEAD": "ref\n", "sub/.git/HEAD": "ref\n"})
    sandbox.write(".git/HEAD", b"other\n")
    sandbox.write("sub/.git/HEAD", b"other\n")
    assert diff("--name-status").lines == ["!\t.git/\t[1 change]", "!\tsub/.git/\t[1 change]"]
    answer = diff()
    assert answer.out == ""
    note = "note: left out of commit: 2 changes in '.git', 'sub/.git'; --include-git takes them\n"
    assert answer.err == note
    assert diff("--name-status", "--include-git").lines == ["M\t.git/HEAD", "M\tsub/.git/HEAD"]


def test_conflicts_of_folded_files_are_counted(stored: Make, diff: Diff) -> None:
    sandbox = stored(IGNORING)
    sandbox.create("x.log", b"sandbox\n")
    (sandbox.host / "x.log").write_text("host\n")
    assert diff("--name-status").lines == ["!\t./\t[1 ignored change, 1 conflict]"]


# JSON


def test_the_json_tells_everything_of_a_change(stored: Make, diff: Diff) -> None:
    sandbox = stored({"d/a": "1\n2\n3\n"})
    sandbox.rename("d", "e")
    sandbox.write("e/a", b"1\ntwo\n3\n")
    sandbox.chmod("e/a", 0o755)
    moved, changed = diff("--json").changes
    assert moved | {"kind": "renamed", "path": "e", "old_path": "d", "directory": True, "hunks": []} == moved
    hunks = changed.pop("hunks")
    assert changed == {
        "path": "e/a",
        "kind": "modified",
        "old_path": "d/a",
        "old_mode": "100644",
        "new_mode": "100755",
        "old_size": 6,
        "new_size": 8,
        "conflict": None,
        "held": None,
        "flags": ["executable"],
        "directory": False,
        "changing": False,
        "problem": None,
        "binary": False,
    }
    match hunks:
        case [{"id": str(name), "header": "@@ -1,3 +1,3 @@", "lines": [" 1\n", "-2\n", "+two\n", " 3\n"]}]:
            assert len(name) == 8
        case _:
            pytest.fail(f"these are not the hunks: {hunks}")


def test_bytes_that_are_no_text_come_out_of_the_json_as_they_are(stored: Make, diff: Diff) -> None:
    sandbox = stored({})
    sandbox.create(b"\xff", b"\xfe\n")
    (change,) = diff("--json").changes
    assert (change["path"], change["path_bytes"]) == ("\ufffd", base64.b64encode(b"\xff").decode())
    match change["hunks"]:
        case [{"lines": ["+\ufffd\n"], "lines_bytes": [str(line)]}]:
            assert base64.b64decode(line) == b"+\xfe\n"
        case other:
            pytest.fail(f"these are not the hunks: {other}")


# Since the last commit


def test_only_what_changed_after_the_last_commit_is_shown_when_asked(stored: Make, diff: Diff) -> None:
    sandbox = stored({"a": "1\n", "b": "1\n", "gone": "1\n"})
    sandbox.write("a", b"before\n")
    assert diff("--name-status", "--since-commit").lines == ["M\ta"]
    for number, kind in ((1, "commit"), (2, "discard")):
        record = sandbox.places.commits / str(number) / "record.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"kind": kind}))
    os.utime(sandbox.places.commits / "1/record.json", ns=(1, sandbox.upper_clock()))
    (sandbox.places.commits / "3").mkdir()
    sandbox.write("b", b"after\n")
    sandbox.unlink("gone")
    last = "# sandboxfs: commit applies 1 change not in this list: 'a'"
    assert diff("--name-status", "--since-commit").lines == ["M\tb", "D\tgone", last]
    assert len(diff("--name-status").lines) == 3


# Speed and independence


def test_diff_imports_neither_trio_nor_fuse_nor_the_overlay(stored: Make) -> None:
    sandbox = stored({"a": "1\n"})
    sandbox.write("a", b"changed\n")
    code = (
        "import sys; from sandboxfs.cli.main import main; main(['diff', '--stat']);"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stderr.split())
    assert "sandboxfs.cli.diff" in loaded
    unwanted = {
        "trio",
        "pyfuse3",
        "hypothesis",
        "sandboxfs.overlay",
        "sandboxfs.daemon",
        "sandboxfs.fuse",
        "subprocess",
    }
    assert not loaded & unwanted


def test_status_counts_changes_and_conflicts(
    stored: Make, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    sandbox = stored({"a": "1\n", "b": "1\n"})
    sandbox.write("a", b"changed\n")
    sandbox.write("b", b"changed\n")
    sandbox.mkdir("d")
    sandbox.create("d/new")
    (sandbox.host / "b").write_text("host\n")
    assert main(["status", "--json"]) == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert (told["changes"], told["conflicts"]) == (3, 1)
    assert main(["status"]) == 0
    assert b"changes:    3, 1 in conflict with the workspace" in capsysbinary.readouterr().out


def test_status_without_a_workspace_says_that_changes_are_not_known(
    stored: Make, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = stored({})
    monkeypatch.chdir(sandbox.host.parent)
    sandbox.host.rmdir()
    assert main(["status", "--json"]) == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert (told["changes"], told["conflicts"]) == (None, None)
    assert main(["diff"]) == 2
