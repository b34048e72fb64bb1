"""Asking about hunks, on a real terminal: what is shown, what is typed, and what the editor does."""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dialogue import CTRL_C, CTRL_D, Dialogue

# Asks about the items that the test put down, and puts down what was chosen.
ASK = """\
import json, os, sys
from pathlib import Path
from sandboxfs.commit.selection import Verb
from sandboxfs.review.hunks import hunks
from sandboxfs.commit.pick import OfferedChange, OfferedPart, Picking, Subject
from sandboxfs.cli.pick import ask_by_hunk

verb, folder = sys.argv[1], Path(sys.argv[2])

def items():
    for name, old, new, leads in json.loads((folder / "items").read_text()):
        path, old, new = name.encode(), old.encode("latin-1"), new.encode("latin-1")
        made = [OfferedPart(Subject(subject), text.encode()) for subject, text in leads]
        made += [OfferedPart(Subject.HUNK, hunk.text, hunk) for hunk in hunks(old, new, path=path)]
        header = (b"diff --git a/%s b/%s" % (path, path),)
        yield OfferedChange(path, tuple(made), old, new, header)

picking = Picking(items(), verb)
ask_by_hunk(picking)
result = {}
for item in items():
    picked = picking.picks.get(item.path, False)
    if isinstance(picked, bool):
        extent, mode = "all" if picked else "nothing", False
        text = item.new if picked == (verb == "commit") else item.old
    else:
        extent, mode = "part", picked.mode
        text = picked.content
    result[item.path.decode()] = [extent, mode, text.decode("latin-1")]
(folder / "chosen").write_text(json.dumps(result))
"""

OLD = "".join(f"line {number}\n" for number in range(60))
NEW = (
    OLD.replace("line 5\n", "five\n")
    .replace("line 30\n", "thirty\n")
    .replace("line 33\n", "")
    .replace("line 55\n", "line 55\nmore\n")
)
FIRST = OLD.replace("line 5\n", "five\n")
MODE = ("mode change", "old mode 100644\nnew mode 100755\n")

Change = tuple[str, str, str, list[tuple[str, str]]]


class Asked:
    """One run of the asker."""

    def __init__(self, dialogue: Dialogue, folder: Path) -> None:
        self.dialogue = dialogue
        self._chosen = folder / "chosen"

    def answer(self, *answers: str) -> str:
        """Answer one question after the other; return what was shown before the last."""
        shown = ""
        for answer in answers:
            shown = self.dialogue.answer("]? ", answer)
        return shown

    def chosen(self) -> dict[str, list[object]]:
        self.dialogue.finish()
        assert self.dialogue.process.returncode == 0
        result: dict[str, list[object]] = json.loads(self._chosen.read_text())
        return result

    @property
    def decided(self) -> bool:
        return self._chosen.exists()


class Ask:
    """Starts the asker in a folder of its own, with an environment that the test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "TERM": "dumb", "EDITOR": "false", "TMPDIR": "/nonexistent"}
        self.environment.pop("VISUAL", None)

    def editor(self, script: str, variable: str = "EDITOR") -> None:
        """Let the editor be a shell *script*, which finds the file to edit in `$1`."""
        program = self.folder / "my editor"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        self.environment[variable] = f"'{program}' "

    @contextmanager
    def __call__(self, *changes: Change, verb: str = "commit") -> Iterator[Asked]:
        (self.folder / "items").write_text(json.dumps(changes))
        command = [sys.executable, "-c", ASK, verb, str(self.folder)]
        here = self.folder / "here"
        here.mkdir()
        with Dialogue(command, self.environment, here) as dialogue:
            yield Asked(dialogue, self.folder)


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    return Ask(tmp_path)


def test_hunk_and_question_are_shown_and_the_answer_is_taken(ask: Ask) -> None:
    with ask(("a", "one\n", "two\n", [])) as asked:
        shown = asked.answer("y")
        assert shown == (
            "diff --git a/a b/a\n@@ -1 +1 @@\n-one\n+two\n(1/1) Commit this hunk [y,n,q,a,d,e,p,?]? "
        )
        assert asked.chosen() == {"a": ["all", False, "two\n"]}


def test_only_what_is_new_on_the_screen_is_shown(ask: Ask) -> None:
    with ask(("a", OLD, NEW, []), ("b", "one\n", "two\n", [])) as asked:
        asked.answer("y")
        second = asked.answer("")
        assert second.startswith("y\n@@ -28,10 +28,9 @@ line 26\n")
        assert second.endswith("(2/3) Commit this hunk [y,n,q,a,d,j,J,K,g,/,s,e,p,?]? ")
        assert asked.answer("p") == "\n(2/3) Commit this hunk [y,n,q,a,d,j,J,K,g,/,s,e,p,?]? "
        assert "+thirty\n" in asked.answer("d")
        assert asked.answer("n").startswith("d\ndiff --git a/b b/b\n@@ -1 +1 @@\n")
        assert asked.chosen() == {"a": ["part", False, FIRST], "b": ["nothing", False, "one\n"]}


def test_mode_is_asked_about_by_its_name(ask: Ask) -> None:
    with ask(("a", OLD, FIRST, [MODE])) as asked:
        shown = asked.answer("y")
        assert (
            "old mode 100644\nnew mode 100755\n(1/2) Commit this mode change [y,n,q,a,d,j,J,g,/,p,?]? "
            in shown
        )
        asked.answer("n")
        assert asked.chosen() == {"a": ["part", True, OLD]}


def test_discard_asks_in_its_own_words_and_keeps_the_rest(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [("rename", "rename from b\n")]), verb="discard") as asked:
        assert "(1/4) Discard this rename and all that changed in it [" in asked.answer("n")
        assert "(2/4) Discard this hunk [" in asked.answer("y")
        asked.answer("d")
        assert asked.chosen() == {"a": ["part", False, NEW.replace("five\n", "line 5\n")]}


def test_earlier_answer_is_shown_when_a_hunk_is_seen_again(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        assert "(1/3) Commit this hunk (was: y) [" in asked.answer("y", "K", "n")
        asked.answer("d")
        assert asked.chosen() == {"a": ["nothing", False, OLD]}


def test_help_explains_the_letters_that_apply_and_no_others(ask: Ask) -> None:
    with ask(("a", "one\n", "two\n", [])) as asked:
        helped = asked.answer("?", "q")
        assert "y - commit this hunk\nn - do not commit this hunk\nq - quit" in helped
        assert [line[0] for line in helped.splitlines() if line[1:4] == " - "] == list("ynqadep?")
        asked.chosen()


def test_split_and_capitals_and_blanks_are_understood(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        assert "Split into 2 hunks.\n@@ -28,6 +28,6 @@" in asked.answer(" N ", "S", "Y")
        asked.answer("D")
        assert asked.chosen() == {"a": ["part", False, OLD.replace("line 30\n", "thirty\n")]}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("yes", "One letter is expected, not 'yes'.\n"),
        ("x", "There is no answer 'x': '?' explains those there are.\n"),
        ("K", "There is no hunk before this one.\n"),
        ("s", "This cannot be split: no unchanged line is between its changes.\n"),
        ("g 9", "There is no number 9, only 1 to 3.\n"),
        ("/[", "'[' is not a pattern: unterminated character set at position 0.\n"),
        ("\x9d", "There is no answer '\\x9d': '?' explains those there are.\n"),
    ],
)
def test_answer_that_makes_no_sense_is_asked_for_again(ask: Ask, answer: str, complaint: str) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        again = asked.answer(answer, "q")
        assert complaint + "(1/3) Commit this hunk [" in again
        assert asked.chosen()["a"][0] == "nothing"


def test_g_lists_the_hunks_twenty_at_a_time_and_asks_where_to_go(ask: Ask) -> None:
    old = "".join(f"line {number}\n" for number in range(250))
    new = old.replace("0\n", "0!\n")
    with ask(("a", old, new, [])) as asked:
        asked.answer("y", "g")
        first = asked.dialogue.answer("go to which number (Enter shows more)? ", "")
        assert first.splitlines()[1:3] == ["+  1: -1,4 +1,4       -line 0", "   2: -8,7 +8,7       -line 10"]
        assert " 20: " in first
        assert " 21: " not in first
        assert " 25: -238,7 +238,7   -line 240\n" in asked.dialogue.answer("go to which number? ", "25")
        assert "(25/25) Commit" in asked.answer("q")
        assert asked.chosen()["a"][0] == "part"


def test_slash_asks_for_a_pattern_and_finds_it(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        asked.answer("/")
        asked.dialogue.answer("search for pattern? ", "^.more")
        assert "+more\n" in asked.answer("y")
        asked.answer("/")
        asked.dialogue.answer("search for pattern? ", "")
        assert asked.answer("q").startswith("\n(1/3) Commit this hunk [")
        assert asked.chosen() == {"a": ["part", False, OLD.replace("line 55\n", "line 55\nmore\n")]}


def test_end_of_input_keeps_what_was_taken_and_takes_nothing_more(ask: Ask) -> None:
    with ask(("a", OLD, NEW, []), ("b", "one\n", "two\n", [])) as asked:
        asked.answer("y")
        asked.dialogue.expect("]? ")
        asked.dialogue.type(CTRL_D)
        assert asked.chosen() == {"a": ["part", False, FIRST], "b": ["nothing", False, "one\n"]}


def test_end_of_input_inside_an_answer_quits_too(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        asked.answer("y", "g")
        asked.dialogue.expect("number? ")
        asked.dialogue.type(CTRL_D)
        asked.dialogue.expect("]? ")
        asked.dialogue.type(CTRL_D)
        assert asked.chosen() == {"a": ["part", False, FIRST]}


def test_ctrl_c_ends_everything_and_nothing_is_chosen(ask: Ask) -> None:
    with ask(("a", OLD, NEW, [])) as asked:
        asked.answer("y")
        asked.dialogue.expect("]? ")
        asked.dialogue.type(CTRL_C)
        assert "KeyboardInterrupt" in asked.dialogue.finish()
        assert asked.dialogue.process.returncode == -signal.SIGINT
        assert not asked.decided


def test_content_cannot_steer_the_terminal(ask: Ask) -> None:
    with ask(("a", "one\n", "\x1b[2Jtwo\r\xff\n", [])) as asked:
        assert "\n+\\x1b[2Jtwo\\r\\xff\n" in asked.answer("y")
        asked.chosen()


def test_colours_are_used_where_they_are_wanted(ask: Ask) -> None:
    ask.environment |= {"TERM": "xterm"}
    with ask(("a", "one\n", "\x1btwo\n", [])) as asked:
        shown = asked.dialogue.answer("]?\x1b[m ", "y")
        assert "\n\x1b[36m@@ -1 +1 @@\x1b[m\n\x1b[31m-one\x1b[m\n\x1b[32m+" in shown
        assert "+\x1b[7m\\x1b\x1b[27mtwo\x1b[m\n\x1b[1;34m(1/1) Commit this hunk [" in shown
        asked.chosen()


@pytest.mark.parametrize("quiet", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_colours_are_not_used_where_they_are_not_wanted(ask: Ask, quiet: Mapping[str, str]) -> None:
    ask.environment |= quiet
    with ask(("a", "one\n", "two\n", [])) as asked:
        assert "\x1b" not in asked.answer("y")
        asked.chosen()


# The editor


def test_edited_hunk_is_committed_as_it_was_left(ask: Ask) -> None:
    ask.editor("sed -i 's/^-line 33/ line 33/' \"$1\"")
    with ask(("a", OLD, NEW, [])) as asked:
        asked.answer("n", "e", "n")
        assert asked.chosen() == {"a": ["part", False, OLD.replace("line 30\n", "thirty\n")]}


def test_edited_hunk_is_discarded_as_it_was_left(ask: Ask) -> None:
    ask.editor("sed -i -e 's/^+thirty/ thirty/' -e '/^-line 30/d' \"$1\"")
    with ask(("a", OLD, NEW, []), verb="discard") as asked:
        asked.answer("n", "e", "n")
        kept = NEW.replace("line 32\nline 34\n", "line 32\nline 33\nline 34\n")
        assert asked.chosen() == {"a": ["part", False, kept]}


def test_hunk_that_the_editor_leaves_alone_is_taken(ask: Ask) -> None:
    ask.editor("true")
    with ask(("a", "one\n", "two\n", [])) as asked:
        asked.answer("e")
        assert asked.chosen() == {"a": ["all", False, "two\n"]}


@pytest.mark.parametrize("script", [': > "$1"', "sed -i '/^[^#]/d' \"$1\"", "sed -i '/^[-+ ]/d' \"$1\""])
def test_hunk_of_which_the_editor_leaves_nothing_is_asked_about_again(ask: Ask, script: str) -> None:
    ask.editor(script)
    with ask(("a", "one\n", "two\n", [])) as asked:
        again = asked.answer("e", "n")
        assert "Nothing is left of the hunk: it stays as it was.\n@@ -1 +1 @@\n-one\n+two\n(1/1)" in again
        assert asked.chosen() == {"a": ["nothing", False, "one\n"]}


BREAK_ONCE = """\
if grep -q '^# It could not be used' "$1"; then
    cp "$1" "$0.second"; sed -i 's/^ broken/ line 4/' "$1"
else
    sed -i 's/^ line 4/ broken/' "$1"
fi"""


def test_hunk_that_the_editor_broke_can_be_mended_where_it_was_left(ask: Ask) -> None:
    ask.editor(BREAK_ONCE)
    with ask(("a", OLD, FIRST, [])) as asked:
        asked.answer("e")
        shown = asked.dialogue.answer("Edit again ('n' leaves the hunk as it was) [y,n]? ", "y")
        assert "The edited hunk cannot be used: it has 'broken' where the old text has 'line 4'.\n" in shown
        assert asked.chosen() == {"a": ["all", False, FIRST]}
    second = (ask.folder / "my editor.second").read_text()
    assert "# It could not be used: it has 'broken' where the old text has 'line 4'.\n" in second
    assert second.count("\n broken\n") == 1
    assert second.count("#\n# To leave out a '-' line") == 1


def test_hunk_that_the_editor_broke_stays_as_it_was_when_given_up(ask: Ask) -> None:
    ask.editor(BREAK_ONCE)
    with ask(("a", OLD, FIRST, [])) as asked:
        asked.answer("e")
        asked.dialogue.answer("[y,n]? ", "what")
        asked.dialogue.answer("[y,n]? ", "N")
        assert "\n line 4\n-line 5\n+five\n" in asked.answer("y")
        assert asked.chosen() == {"a": ["all", False, FIRST]}


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ('echo spoilt > "$1"; exit 3', "The hunk stays as it was: the editor '/"),
        ("kill -TERM $$", "was ended by SIGTERM.\n"),
        ('rm "$1"', "to the editor: No such file or directory.\n"),
    ],
)
def test_hunk_stays_as_it_was_when_the_editor_fails(ask: Ask, script: str, complaint: str) -> None:
    ask.editor(script)
    with ask(("a", "one\n", "two\n", [])) as asked:
        assert complaint in asked.answer("e", "n")
        assert asked.chosen() == {"a": ["nothing", False, "one\n"]}


@pytest.mark.parametrize(
    ("editor", "complaint"),
    [
        ("no-such-editor -w", "cannot run the editor 'no-such-editor': "),
        ("'half", "cannot understand the editor '\\'half': No closing quotation.\n"),
    ],
)
def test_editor_that_does_not_exist_is_named(ask: Ask, editor: str, complaint: str) -> None:
    ask.environment["EDITOR"] = editor
    with ask(("a", "one\n", "two\n", [])) as asked:
        assert complaint in asked.answer("e", "n")
        assert asked.chosen()["a"][0] == "nothing"


def test_visual_goes_before_editor(ask: Ask) -> None:
    ask.editor('sed -i s/two/three/ "$1"', "VISUAL")
    with ask(("a", "one\n", "two\n", [])) as asked:
        asked.answer("e")
        assert asked.chosen() == {"a": ["part", False, "three\n"]}


def test_editor_works_on_a_private_file_in_a_private_place_that_is_gone_afterwards(ask: Ask) -> None:
    report = ask.folder / "report"
    ask.editor(
        f"test -t 0 && test -t 1 && test -t 2 || exit 1\n{{ pwd; stat -c %a .; echo \"$1\"; }} > '{report}'"
    )
    with ask(("a", "one\n", "two\n", [])) as asked:
        asked.answer("e")
        assert asked.chosen()["a"][0] == "all"
    place, mode, file = report.read_text().splitlines()
    assert file == f"{place}/hunk.diff"
    assert mode == "700"
    assert place.startswith(os.environ["XDG_RUNTIME_DIR"])
    assert not Path(place).exists()
    assert stat.S_IMODE(Path(place).parent.stat().st_mode) == 0o700


def test_program_beside_the_person_is_not_taken_for_the_editor(ask: Ask) -> None:
    """The person may stand in a view, where the program in the sandbox can put anything."""
    ask.environment |= {"EDITOR": "planted", "PATH": f".:{os.environ['PATH']}"}
    with ask(("a", "one\n", "two\n", [])) as asked:
        planted = ask.folder / "here" / "planted"
        planted.write_text(f"#!/bin/sh\ntouch '{ask.folder}/ran'\n")
        planted.chmod(0o755)
        assert "cannot run the editor 'planted'" in asked.answer("e", "q")
        asked.chosen()
    assert not (ask.folder / "ran").exists()


def test_commands_to_editors_in_the_text_are_out_of_their_reach(ask: Ask) -> None:
    ask.editor('cp "$1" "$0.seen"')
    with ask(("a", "# vim: set x:\n", "vim: set y:\n", [])) as asked:
        asked.answer("e")
        asked.chosen()
    lines = (ask.folder / "my editor.seen").read_text().splitlines()
    assert all(line.startswith("#") and "vim" not in line for line in lines[:5] + lines[-5:])


# A shell that has a trap could still miss the signal: between its last command and the one that waits.
WAITS_FOR_CTRL_C = """
import signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("editing", flush=True)
signal.sigwait({signal.SIGINT})
Path(sys.argv[1]).write_text(Path(sys.argv[1]).read_text().replace("two", "three"))
"""


def test_ctrl_c_in_the_editor_is_the_editor_s(ask: Ask) -> None:
    ask.editor(f"exec {sys.executable} -c '{WAITS_FOR_CTRL_C}' \"$1\"")
    with ask(("a", "one\n", "two\n", [])) as asked:
        asked.answer("e")
        asked.dialogue.expect("editing\n")
        asked.dialogue.type(CTRL_C)
        assert asked.chosen() == {"a": ["part", False, "three\n"]}


def test_ctrl_c_works_again_after_the_editor(ask: Ask) -> None:
    ask.editor(': > "$1"')
    with ask(("a", "one\n", "two\n", [])) as asked:
        asked.answer("e")
        asked.dialogue.expect("]? ")
        asked.dialogue.type(CTRL_C)
        asked.dialogue.finish()
        assert asked.dialogue.process.returncode == -signal.SIGINT


def test_terminal_is_as_it_was_after_an_editor_that_died(ask: Ask) -> None:
    ask.editor("stty raw -echo; kill -KILL $$")
    with ask(("a", "one\n", "two\n", [])) as asked:
        assert "was ended by SIGKILL.\n@@ -1 +1 @@" in asked.answer("e", "y")
        assert asked.chosen()["a"][0] == "all"
