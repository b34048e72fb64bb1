"""Is an answer that was kept still good after a restart, and for nothing more than it was given for?"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from sandboxfs.errors import UsageError
from tests.mount.conftest import Mount
from tests.support.asked import AskedQuestion, Follower, following, output, started
from tests.support.dialogue import Dialogue
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {".env": "SECRET=1\n", ".env.local": "SECRET=2\n", "deny.env": "3\n", "src/a": "a\n"}
RULE = '# mine\n[[rule]]\npath = ".env*"\nmode = "ask"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "config.toml"
    made.write_text(RULE)
    made.chmod(0o644)
    return made


def reads(view: MountDriver, path: str, *how: str) -> str:
    done = subprocess.run(
        [*(how or ["cat"]), path], cwd=view.root, capture_output=True, text=True, check=False
    )
    return done.stdout or done.stderr


def refused(view: MountDriver, path: str, *how: str) -> bool:
    return "Permission denied" in reads(view, path, *how)


def grants(view: MountDriver) -> list[dict[str, object]]:
    done = run_sandboxfs("grants", "-s", "test", "--json", state=view.state)
    assert done.returncode == 0, done.stderr
    return cast("list[dict[str, object]]", json.loads(done.stdout)["grants"])


def answered(
    view: MountDriver, person: Follower, command: str, *words: str
) -> "subprocess.CompletedProcess[str]":
    """Have the shell run *command*, which asks, and answer with these words."""
    with started("sh", "-c", command, cwd=view.root) as program:
        question: AskedQuestion = person.question()
        done = run_sandboxfs("answer", str(question["id"]), *words, "-s", "test", state=view.state)
        if done.returncode:
            person.answer(question, "deny")
        output(program)
    assert person.next("over")["id"] == question["id"]
    return done


KEEP = "--for", "path", "--during", "always"


def test_a_kept_answer_holds_at_once_and_after_a_restart(mount: Mount, config: Path) -> None:
    view = mount(TREE, "--config", str(config))
    with following(view) as person:
        done = answered(view, person, "cat .env", "allow", *KEEP)
        assert done.returncode == 0, done.stderr
        assert f"written to {config}:7" in done.stderr
    assert reads(view, ".env") == "SECRET=1\n"
    text = config.read_text()
    assert text.startswith(RULE)
    assert "answer to question 1 of sandbox 'test': read '.env' by '" in text
    assert config.stat().st_mode & 0o7777 == 0o644
    view.stop()
    # A person moves the rule, and the table with it.
    config.write_text("# a line more\n" + text)
    view.start()
    # Nobody follows.
    assert reads(view, ".env") == "SECRET=1\n"
    assert refused(view, ".env.local")
    (grant,) = grants(view)
    assert (grant["during"], grant["hits"], grant["question"]) == ("always", 1, None)
    assert grant["kept"] == {"file": str(config), "line": 8}
    assert f"always, {config}:8" in run_sandboxfs("grants", "-s", "test", state=view.state).stdout
    daemon = os.pidfd_open(view.pid)
    os.kill(view.pid, signal.SIGKILL)
    select.select([daemon], [], [])
    os.close(daemon)
    view.start()
    assert reads(view, ".env") == "SECRET=1\n"
    done = run_sandboxfs("revoke", str(grants(view)[0]["id"]), "-s", "test", state=view.state)
    assert f"; removed from {config}" in done.stdout
    assert config.read_text() == "# a line more\n" + RULE
    assert refused(view, ".env")
    view.stop()
    view.start()
    assert refused(view, ".env")
    assert grants(view) == []


def test_a_kept_denial_stays_with_its_reason(mount: Mount, config: Path) -> None:
    view = mount(TREE, "--config", str(config))
    with following(view) as person:
        answered(
            view, person, "cat .env", "deny", "--for", "directory", "--during", "always", "--reason", "no: é"
        )
    view.stop()
    view.start()
    with following(view):
        # Nothing is asked any more.
        assert refused(view, ".env")
        assert refused(view, ".env.local")
    assert "no: é" in (view.root / ".sandboxfs/denials").read_text()


def test_it_answers_only_the_question_of_its_own_rule(mount: Mount, config: Path) -> None:
    view = mount(TREE, "--config", str(config))
    with following(view) as person:
        answered(view, person, "cat .env", "allow", "--for", "directory", "--during", "always")
    assert reads(view, ".env.local") == "SECRET=2\n"
    table = config.read_text().removeprefix(RULE)

    def says(text: str, project: str = "") -> None:
        view.stop()
        config.write_text(text)
        (view.lower / ".sandboxfs.toml").write_text(project)
        view.host_changed()
        view.start()

    stricter = '[[rule]]\npath = ".env"\nmode = "{}"\n'
    for mode in ("deny", "hide"):
        says(stricter.format(mode) + RULE + table)
        assert reads(view, ".env.local") == "SECRET=2\n"
        assert "SECRET" not in reads(view, ".env")
    says(stricter.format("ro") + RULE + table)
    with pytest.raises(OSError, match="Read-only"):
        (view.root / ".env").write_text("")
    # The rule itself forbids now, or has gone, or another one asks.
    says(RULE.replace("ask", "deny") + table)
    assert refused(view, ".env")
    says(RULE.replace(".env*", ".env.*") + table)
    assert reads(view, ".env") == "SECRET=1\n"
    assert refused(view, ".env.local")
    (gone,) = grants(view)
    assert cast("dict[str, object]", gone["rule"])["source"] == "a rule that is not there"
    # The project's rule is stricter, or asks by itself.
    says(RULE + table, project='[[rule]]\npath = ".env"\nmode = "deny"\n')
    assert refused(view, ".env")
    says(RULE + table, project='[[rule]]\npath = ".env.local"\nmode = "ask"\n')
    assert reads(view, ".env") == "SECRET=1\n"
    assert refused(view, ".env.local")


def test_another_workspace_and_another_program_have_nothing_of_it(
    mount: Mount, config: Path, tmp_path: Path
) -> None:
    view = mount(TREE, "--config", str(config))
    with following(view) as person:
        answered(view, person, "cat .env", "allow", *KEEP, "--program")
    assert reads(view, ".env") == "SECRET=1\n"
    assert refused(view, ".env", "head")
    view.stop()
    view.start()
    assert reads(view, ".env") == "SECRET=1\n"
    assert refused(view, ".env", "head")
    view.stop()
    text = config.read_text()
    config.write_text(text.replace(f'"{view.lower}"', f'"{tmp_path}"'))
    view.start()
    assert refused(view, ".env")
    assert grants(view) == []


def test_a_new_program_is_known_again_by_its_content(mount: Mount, config: Path) -> None:
    config.write_text('[execute]\nnew = "ask"\n')
    view = mount(TREE, "--config", str(config))

    def make(name: str, text: str) -> None:
        (view.root / name).write_text(f"#!/bin/sh\necho {text}\n")
        (view.root / name).chmod(0o755)

    make("tool", "one")
    with following(view) as person:
        done = answered(view, person, "./tool", "allow", "--for", "content", "--during", "always")
        assert done.returncode == 0, done.stderr
    view.stop()
    view.start()
    make("other", "one")
    make("tool", "two")
    assert (
        subprocess.run(["./other"], cwd=view.root, capture_output=True, text=True, check=True).stdout
        == "one\n"
    )
    with pytest.raises(PermissionError):
        subprocess.run(["./tool"], cwd=view.root, check=False)


def test_what_cannot_be_kept_is_refused_and_the_question_waits_on(mount: Mount, config: Path) -> None:
    view = mount(TREE, "--config", str(config))
    with following(view) as person:
        for words in (["--during", "always"], [*KEEP, "--tree"]):
            done = answered(view, person, "cat .env", "allow", *words)
            assert done.returncode == 2
        with started("cat", ".env", cwd=view.root) as program:
            question = person.question()
            for how in ({"for": "once"}, {"for": "path", "tree": True}, {"for": "src/*"}):
                with pytest.raises(UsageError):
                    person.answer(question, during="always", **how)
            config.write_text(RULE + "[broken")
            with pytest.raises(UsageError, match="malformed TOML"):
                person.answer(question, during="always", **{"for": "path"})
            config.write_text(RULE)
            done = run_sandboxfs("allow", ".env", "ask", "-s", "test", state=view.state, cwd=view.root)
            person.answer(question, "deny")
            assert "Permission denied" in output(program)
    assert config.read_text() == RULE


def test_a_person_keeps_an_answer_by_a_whole_word(mount: Mount, config: Path) -> None:
    view = mount(TREE, "--config", str(config))
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(view.state), "TERM": "dumb"}
    command = [sys.executable, "-m", "sandboxfs", "asks", "-s", "test", "--follow"]
    with Dialogue(command, environment) as person:
        person.expect("Ctrl-C leaves\n")
        with started("cat", ".env", cwd=view.root) as program:
            person.expect("allow? [o,d,s,n,N,?] ")
            person.type(b"a\n")
            assert "always, never" in person.expect("allow? [o,d,s,n,N,?] ")
            assert config.read_text() == RULE
            person.type(b"always\n")
            assert output(program) == "SECRET=1\n"
            person.expect(f"written to {config}:7")
    assert grants(view)[0]["during"] == "always"
