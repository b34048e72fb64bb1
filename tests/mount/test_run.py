"""Does `run` give a program everything that it would have had, and leave nothing behind?"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.terminal import Terminal
from tests.support.tree import Symlink, Tree, assert_same_tree, build, capture

# Of this process's tests alone: others may run beside it.
MARK = f"sleep 31415{os.getpid()}.5"
SLEEPERS = f"{MARK} & (setsid {MARK} &); echo ready; exec {MARK}"
PROJECT: Tree = {"file": "lower text\n", "dir/inner": "inner\n", "script": "echo plain $1\n"}


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace that is proved unchanged at the end, with nothing left of the runs in it."""
    made = build(tmp_path / "workspace", PROJECT)
    before = capture(made)
    yield made
    runs.check_nothing_left(MARK)
    assert_same_tree(capture(made), before, what="the workspace")


def sandboxes() -> dict[str, str]:
    """The state of every sandbox by its name."""
    listed = json.loads(run_sandboxfs("list", "--json").stdout)["sandboxes"]
    return {one["name"]: one["state"] for one in listed}


# The program and its world


def test_what_a_program_writes_stays_in_the_sandbox(workspace: Path, confinement: str) -> None:
    inside = "echo new > file; rm -r dir; echo x > added"
    runs.run("--confine", confinement, "--", "sh", "-c", inside, cwd=workspace)
    seen = runs.run("--confine", confinement, "--", "sh", "-c", "cat file; ls", cwd=workspace)
    assert seen.stdout == "new\nadded\nfile\nscript\n"
    assert sandboxes() == {"workspace": "unmounted"}


def test_the_view_is_at_the_workspaces_own_path(workspace: Path) -> None:
    runs.require("bubblewrap")
    inside = f"pwd; cat {workspace}/file; cd dir; readlink -f inner"
    seen = runs.run("--", "sh", "-c", inside, cwd=workspace)
    assert seen.stdout == f"{workspace}\nlower text\n{workspace}/dir/inner\n"


def test_a_program_starts_where_the_command_was_given(workspace: Path, confinement: str) -> None:
    words = ("--confine", confinement, "--workspace", workspace, "--", "cat", "inner")
    assert runs.run(*words, cwd=workspace / "dir").stdout == "inner\n"


def test_toplevel_is_the_git_work_tree_around(tmp_path: Path) -> None:
    top = build(
        tmp_path / "repository", {".git/HEAD": "ref: refs/heads/main\n", "a/b/c": "c", "top": "top\n"}
    )
    words = ("--toplevel", "--", "sh", "-c", "cat ../../top; touch new")
    assert runs.run(*words, cwd=top / "a/b").stdout == "top\n"
    assert list(sandboxes()) == ["repository"]


def test_in_a_subdirectory_the_repositorys_top_is_the_workspace_and_the_program_starts_there(
    tmp_path: Path, confinement: str
) -> None:
    top = build(
        tmp_path / "repository", {".git/HEAD": "ref: refs/heads/main\n", "a/b/c": "c\n", "top": "top\n"}
    )
    words = ("--confine", confinement, "sh", "-c", "cat c ../../top && echo x > new")
    assert runs.run(*words, cwd=top / "a/b").stdout == "c\ntop\n"
    assert list(sandboxes()) == ["repository"]
    runs.run("--workspace", ".", "--", "touch", "new", cwd=top / "a/b")
    assert list(sandboxes()) == ["b", "repository"], "a workspace that is named is never lifted"


def test_here_is_the_current_directory_also_in_a_repository(tmp_path: Path) -> None:
    top = build(tmp_path / "repository", {".git/HEAD": "ref: refs/heads/main\n", "a/b/c": "c\n"})
    runs.run("--here", "touch", "new", cwd=top / "a/b")
    assert list(sandboxes()) == ["b"]


def test_a_work_tree_whose_repository_is_elsewhere_is_told_what_to_show(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    main = build(tmp_path / "main", {"file": "text\n"})
    steps = "git init -q && git add . && git -c user.name=u -c user.email=u@u commit -qm first && "
    subprocess.run(["sh", "-c", f"{steps} git worktree add -q ../side"], cwd=main, check=True)
    side = tmp_path / "side"
    done = runs.run("--toplevel", "--new", "--", "git", "status", cwd=side, status=128)
    assert f"hint: show it with --allow '{main}'" in done.stderr
    done = runs.run("--toplevel", "--new", "--allow", main, "--", "git", "status", "--short", cwd=side)
    assert (done.stdout, "hint" in done.stderr) == ("", False)


def test_links_inside_the_workspace_are_as_they_are(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    place = tmp_path / "workspace"
    build(place, {"file": "text\n", "absolute": Symlink(str(place / "file"))})
    seen = runs.run("--", "sh", "-c", "readlink absolute; cat absolute", cwd=place)
    assert seen.stdout == f"{place}/file\ntext\n"


def test_programs_see_no_processes_but_their_own(workspace: Path) -> None:
    runs.require("bubblewrap")
    seen = runs.run("--", "sh", "-c", "echo $$; ls -d /proc/[0-9]*", cwd=workspace)
    assert seen.stdout.splitlines()[0] == "2"
    assert len(seen.stdout.splitlines()) <= 4


def test_the_system_is_there_for_reading(workspace: Path, confinement: str) -> None:
    words = ("--confine", confinement, "--", "sh", "-c", "ls /usr && : > /etc/made")
    seen = runs.run(*words, cwd=workspace, status=2)
    assert {"bin", "lib"} <= set(seen.stdout.split())


# Input, output and status


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_the_status_is_the_programs_own(workspace: Path, script: str, status: int) -> None:
    runs.run("--", "sh", "-c", script, cwd=workspace, status=status)


def test_input_and_output_are_passed_through(workspace: Path, confinement: str) -> None:
    words = ("--confine", confinement, "--quiet", "--", "sh", "-c", "cat; echo no >&2")
    done = runs.run(*words, cwd=workspace, text="in\n")
    assert done.stdout == "in\n"
    assert done.stderr.endswith("no\n")


def test_a_file_given_as_input_is_read_and_cannot_be_written(workspace: Path, confinement: str) -> None:
    inside = "cat; echo escaped > /proc/self/fd/0"
    with open(workspace / "file") as given:
        done = subprocess.run(
            runs.run_words("--confine", confinement, "--", "sh", "-c", inside),
            cwd=workspace,
            stdin=given,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == "lower text\n"
    assert (workspace / "file").read_text() == "lower text\n"


def test_output_to_a_file_arrives_whole_and_in_order(workspace: Path, tmp_path: Path) -> None:
    inside = "for n in 1 2 3; do echo out $n; echo err $n >&2; done; head -c 3000000 /dev/zero"
    with open(tmp_path / "log", "wb") as log:
        log.write(b"before\n")
        log.flush()
        subprocess.run(
            runs.run_words("--", "sh", "-c", inside), cwd=workspace, stdout=log, stderr=log, check=True
        )
    written = (tmp_path / "log").read_bytes()
    assert written.startswith(b"before\nout 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n\0\0")
    assert written.count(b"\0") == 3_000_000


def test_large_input_from_a_file_arrives_whole(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    with open(tmp_path / "large", "rb") as given:
        done = subprocess.run(
            runs.run_words("--", "wc", "-c"), cwd=workspace, stdin=given, capture_output=True, check=True
        )
    assert done.stdout == b"3000000\n"


def test_a_program_that_reads_no_further_ends_without_waiting(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"line\n" * 1_000_000)
    with open(tmp_path / "large", "rb") as given:
        done = subprocess.run(
            runs.run_words("--", "head", "-n1"), cwd=workspace, stdin=given, capture_output=True, check=True
        )
    assert done.stdout == b"line\n"


def test_a_closed_stream_is_closed_for_the_program_too(workspace: Path, confinement: str) -> None:
    words = runs.run_words("--quiet", "--confine", confinement, "--", "sh", "-c", "echo out || echo told >&2")
    line = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *words]
    done = subprocess.run(line, cwd=workspace, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith("told\n")
    assert "Traceback" not in done.stderr


def test_arguments_are_passed_as_they_are(workspace: Path, confinement: str) -> None:
    words = ["", "a b", "--json", "-s", "new\nline", "\udcff", "*", "--"]
    done = runs.run("--confine", confinement, "--", "printf", "<%s>", *words, cwd=workspace)
    assert done.stdout == "".join(f"<{word}>" for word in words)


def test_a_script_without_an_interpreter_is_run_by_the_shell(tmp_path: Path) -> None:
    place = build(tmp_path / "workspace", PROJECT)
    (place / "script").chmod(0o755)
    assert runs.run("--", "./script", "x", cwd=place).stdout == "plain x\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_program(workspace: Path, number: signal.Signals) -> None:
    inside = f"trap 'echo got it; exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with started("--", "sh", "-c", inside, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=runs.PATIENCE)
    assert output == "got it\n"
    assert process.returncode == 9


@contextmanager
def started(*words: str | Path, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        runs.run_words(*words),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=runs.PATIENCE)


# Environment, home, network


def test_the_environment_is_marked_and_has_no_secrets(workspace: Path, confinement: str) -> None:
    variables = {"MY_API_KEY": "1", "OTHER_TOKEN": "2", "DEBUG": "3", "SSH_AUTH_SOCK": "/x", "DBPASS": "5"}
    words = ("--confine", confinement, "--env", "OTHER_*", "--env", "GIVEN=4", "--", "env")
    done = runs.run(*words, cwd=workspace, env=variables)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["SANDBOXFS"] == "1"
    assert seen["SANDBOXFS_SANDBOX"] == "workspace"
    assert seen["SANDBOXFS_NETWORK_DISABLED"] == "1"
    assert (seen["OTHER_TOKEN"], seen["DEBUG"], seen["GIVEN"]) == ("2", "3", "4")
    withheld = {"MY_API_KEY", "DBPASS", "SSH_AUTH_SOCK", "SANDBOXFS_STATE_DIR", "XDG_RUNTIME_DIR"}
    assert not withheld & seen.keys()
    assert "variables not passed on: DBPASS, MY_API_KEY (" in done.stderr


def test_variables_that_the_user_configured_for_a_workspace_are_passed_on(workspace: Path) -> None:
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "sandboxfs/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        f'[[environment]]\nworkspace = "{workspace}"\npass = ["DB_URL", "APP_*"]\n'
        '[[environment]]\nworkspace = "/elsewhere"\npass = ["OTHER"]\n'
    )
    variables = {"DB_URL": "1", "APP_KEY": "2", "OTHER": "3"}
    done = runs.run("--", "env", cwd=workspace, env=variables)
    assert {"DB_URL=1", "APP_KEY=2"} <= set(done.stdout.splitlines())
    assert "OTHER=3" not in done.stdout
    assert "variables not passed on: OTHER (" in done.stderr
    everything = runs.run("--env-all", "--", "env", cwd=workspace, env=variables)
    assert "OTHER=3" in everything.stdout.splitlines()
    assert "not passed on" not in everything.stderr


def test_a_cleared_environment_has_what_every_program_needs(workspace: Path) -> None:
    done = runs.run("--clear-env", "--env", "GIVEN=4", "--", "env", cwd=workspace, env={"EDITOR": "3"})
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {"PATH", "HOME", "SANDBOXFS", "GIVEN"} <= seen.keys()
    assert "EDITOR" not in seen


def test_the_private_home_lasts_for_the_sandbox(workspace: Path, confinement: str) -> None:
    words = ("--confine", confinement, "--", "sh", "-c")
    first = runs.run(*words, "ls -A ~; echo kept > ~/note", cwd=workspace)
    assert "note" not in first.stdout
    assert runs.run(*words, "cat ~/note", cwd=workspace).stdout == "kept\n"
    assert runs.run("--new", *words, "cat ~/note", cwd=workspace, status=1).stdout == ""
    assert os.listdir(os.environ["HOME"]) == []


def test_the_users_own_home_is_copied_on_write_without_its_secrets(workspace: Path, confinement: str) -> None:
    tree: Tree = {".ssh/id": "key", ".aws/credentials": "key", ".vimrc": "set nu\n"}
    home = build(Path(os.environ["HOME"]), tree)
    before = capture(home)
    inside = "ls -A ~; cat ~/.vimrc; echo more >> ~/.vimrc; cat ~/.ssh/id"
    words = ("--confine", confinement, "--home", "cow", "--", "sh", "-c", inside)
    done = runs.run(*words, cwd=workspace, status=1)
    assert done.stdout == ".vimrc\nset nu\n"
    assert_same_tree(capture(home), before, what="the home")
    assert set(sandboxes()) == {"workspace", "workspace.home"}


def test_without_a_home_there_is_none(workspace: Path) -> None:
    done = runs.run("--home", "none", "--", "sh", "-c", "echo $HOME; ls $HOME", cwd=workspace, status=2)
    assert done.stdout == "/nonexistent\n"


@pytest.mark.parametrize("home", ["/", "/usr", "/proc", "/etc"])
def test_a_home_that_would_cover_the_system_is_refused(workspace: Path, home: str) -> None:
    runs.require("bubblewrap")
    environment = {"HOME": home}
    done = runs.run("--", "true", cwd=workspace, env=environment, status=125)
    assert f"HOME is '{home}'" in done.stderr
    assert "hint: use --home none" in done.stderr
    assert sandboxes() == {}
    runs.run("--home", "none", "--", "true", cwd=workspace, env=environment)


def test_a_workspace_that_is_the_home_wants_its_secrets_hidden(confinement: str) -> None:
    home = build(Path(os.environ["HOME"]), {".ssh/id": "key", "file": "text\n"})
    words = ("--confine", confinement)
    refused = runs.run(*words, "--", "ls", "-A", cwd=home, status=125)
    assert "is your home directory" in refused.stderr
    assert runs.run(*words, "--home", "cow", "--", "ls", "-A", cwd=home).stdout == "file\n"


def test_with_a_network_a_program_reaches_the_machine(workspace: Path, confinement: str) -> None:
    inside = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('reached')"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        words = ("--confine", confinement, "--", runs.PYTHON, "-I", "-c", inside, port)
        assert runs.run("--network", *words, cwd=workspace).stdout == "reached\n"
        runs.run(*words, cwd=workspace, status=1)


def test_even_with_a_network_abstract_sockets_of_others_are_out_of_reach(
    workspace: Path, confinement: str
) -> None:
    inside = "import socket, sys; socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])"
    name = f"sandboxfs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        words = ("--confine", confinement, "--network", "--", runs.PYTHON, "-I", "-c", inside, name)
        assert "PermissionError" in runs.run(*words, cwd=workspace, status=1).stderr


# Other places


def test_a_directory_that_is_allowed_is_copied_on_write_at_its_own_path(
    workspace: Path, tmp_path: Path
) -> None:
    runs.require("bubblewrap")
    library = build(tmp_path / "library", {"code": "code\n", ".env": "secret"})
    before = capture(library)
    inside = f"cat {library}/code; echo changed > {library}/code; ls -A {library}"
    words = ("--allow", library, "--rule", "**/.env=hide", "--")
    assert runs.run(*words, "sh", "-c", inside, cwd=workspace).stdout == "code\ncode\n"
    assert_same_tree(capture(library), before, what="the library")
    assert runs.run(*words, "cat", f"{library}/code", cwd=workspace).stdout == "changed\n"
    assert set(sandboxes()) == {"workspace", "workspace.library"}
    assert run_sandboxfs("rm", "workspace").returncode == 2, "its companion holds changes"
    assert run_sandboxfs("rm", "--force", "workspace").returncode == 0
    assert sandboxes() == {}


def test_a_directory_can_be_allowed_for_reading_and_so_can_a_file(workspace: Path, tmp_path: Path) -> None:
    runs.require("bubblewrap")
    library = build(tmp_path / "library", {"code": "code\n"})
    note = tmp_path / "note"
    note.write_text("note\n")
    inside = f"cat {library}/code {note}; (: > {library}/code); : > {note}"
    words = ("--allow", f"{library}:ro", "--allow", f"{note}:ro", "--", "sh", "-c", inside)
    done = runs.run(*words, cwd=workspace, status=2)
    assert done.stdout == "code\nnote\n"
    assert done.stderr.count("Read-only file system") == 2


def test_a_directory_of_the_configuration_is_allowed_as_well(workspace: Path, tmp_path: Path) -> None:
    runs.require("bubblewrap")
    library = build(tmp_path / "library", {"code": "code\n"})
    config = tmp_path / "config.toml"
    config.write_text(f'[[workspace.allow]]\npath = "{library}"\nmode = "ro"\n')
    assert runs.run("--config", config, "--", "cat", library / "code", cwd=workspace).stdout == "code\n"


@pytest.mark.parametrize("around", ["/dev/shm", "/tmp", "/var/tmp"])
def test_places_in_temporary_directories_are_shown_where_they_are(around: str) -> None:
    runs.require("bubblewrap")
    with tempfile.TemporaryDirectory(dir=around) as made:
        top = build(Path(made), {"work/file": "text\n", "beside/file": "beside\n", "home/": ""})
        before = capture(top)
        inside = f"cat file {top}/beside/file; echo work > result; echo kept > ~/note"
        home = {"HOME": str(top / "home")}
        done = runs.run("--allow", top / "beside", "--", "sh", "-c", inside, cwd=top / "work", env=home)
        assert done.stdout == "text\nbeside\n"
        assert "A result" in done.stderr
        assert runs.run("--", "sh", "-c", "cat ~/note", cwd=top / "work", env=home).stdout == "kept\n"
        assert_same_tree(capture(top), before, what="the places")


# Which sandbox


def test_a_run_goes_on_with_the_sandbox_of_the_workspace_unless_told_otherwise(workspace: Path) -> None:
    runs.run("--", "sh", "-c", "echo 1 > made", cwd=workspace)
    assert runs.run("--", "cat", "made", cwd=workspace).stdout == "1\n"
    assert runs.run("--new", "--", "sh", "-c", "ls; touch new", cwd=workspace).stdout == "dir\nfile\nscript\n"
    assert runs.run("-s", "workspace", "--", "cat", "made", cwd=Path("/")).stdout == "1\n"
    assert set(sandboxes()) == {"workspace", "workspace-2"}


def test_two_runs_at_once_are_two_sandboxes(workspace: Path) -> None:
    inside = "echo ready; exec sleep 30"
    with (
        started("--", "sh", "-c", inside, cwd=workspace) as first,
        started("--", "sh", "-c", inside, cwd=workspace) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        assert first.stdout.readline() == second.stdout.readline() == "ready\n"
        assert sandboxes() == {"workspace": "mounted", "workspace-2": "mounted"}


def test_a_second_run_joins_the_view_and_outlives_the_first(workspace: Path, confinement: str) -> None:
    keep = "echo 1 > made; echo ready; sleep 30"
    with started("--confine", confinement, "--", "sh", "-c", keep, cwd=workspace) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        inside = "cat made; echo ready; sleep 1; cat made"
        words = ("--confine", confinement, "-s", "workspace", "--", "sh", "-c", inside)
        with started(*words, cwd=workspace) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "1\n"
            assert second.stdout.readline() == "ready\n"
            first.terminate()
            assert first.wait(runs.PATIENCE) == 143
            assert second.communicate(timeout=runs.PATIENCE)[0] == "1\n"
            assert second.returncode == 0
    assert sandboxes() == {"workspace": "unmounted"}


def test_a_run_joins_what_mount_serves_and_leaves_it_mounted(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    run_sandboxfs("mount", "--name", "lasting", workspace, tmp_path / "view")
    try:
        runs.run("-s", "lasting", "--", "sh", "-c", "echo 1 > made", cwd=workspace)
        assert (tmp_path / "view/made").read_text() == "1\n"
        assert sandboxes() == {"lasting": "mounted"}
        refused = runs.run("-s", "lasting", "--rule", "file=hide", "--", "true", cwd=workspace, status=125)
        assert "mounted already" in refused.stderr
    finally:
        assert run_sandboxfs("unmount", "-s", "lasting").returncode == 0


# Bad input


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ((), 125, "there is no COMMAND"),
        (("--",), 125, "there is no COMMAND"),
        (("--", ""), 125, "there is no COMMAND"),
        (("--fly", "--", "true"), 125, "--fly"),
        (("--", "no-such-program"), 127, "cannot run 'no-such-program': not found"),
        (("--", "./no-such-program"), 127, "not found"),
        (("--", "./file"), 126, "cannot run './file': Permission denied"),
        (("--", "./dir"), 126, "Permission denied"),
        (("--workspace", "/no/such/directory", "--", "true"), 125, "no such directory"),
        (("--workspace", "/etc/passwd", "--", "true"), 125, "not a directory"),
        (("--workspace", "/", "--", "true"), 125, "cannot run in '/'"),
        (("-s", "nobody", "--", "true"), 125, "no sandbox called 'nobody'"),
        (("--allow", "/no/such/place", "--", "true"), 125, "no such file or directory"),
        (("--allow", "/etc:hide", "--", "true"), 125, "cannot be 'hide'"),
        (("--allow", "/etc/passwd", "--", "true"), 125, "only a directory can be allowed for writing"),
        (("--allow", "..", "--", "true"), 125, "lies inside it"),
        (("--allow", "/usr/lib:ro", "--allow", "/usr:ro", "--", "true"), 125, "inside one another"),
        (("--allow", "/proc", "--", "true"), 125, "cannot be put into a world"),
        (("--env", "=x", "--", "true"), 125, "expected NAME"),
        (("--env", "NO_SUCH_VARIABLE", "--", "true"), 125, "no such variable"),
        (("--toplevel", "--", "true"), 125, "in no git work tree"),
        (("--new", "-s", "x", "--", "true"), 125, "choose"),
        (("--json", "-", "--", "true"), 125, "standard output is COMMAND's"),
        (("--rule", "file", "--", "true"), 125, "expected PATTERN=MODE"),
    ],
)
def test_bad_input_is_told_and_leaves_nothing_mounted(
    workspace: Path, words: tuple[str, ...], status: int, complaint: str
) -> None:
    assert complaint in runs.run(*words, cwd=workspace, status=status).stderr


def test_without_bubblewrap_it_says_how_to_install_it(workspace: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("fusermount3", "true", "sh"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    path = {"PATH": str(tools)}
    refused = runs.run("--confine", "bubblewrap", "--", "true", cwd=workspace, env=path, status=125)
    assert "there is no bwrap on the PATH" in refused.stderr
    assert "hint: apt install bubblewrap" in refused.stderr
    runs.require("landlock")
    done = runs.run("--", "/usr/bin/true", cwd=workspace, env=path)
    assert "confined with Landlock because bubblewrap cannot be used (there is no bwrap" in done.stderr
    assert "\nhint: apt install bubblewrap\n" in done.stderr


def test_a_sandbox_of_another_workspace_is_refused(workspace: Path, tmp_path: Path) -> None:
    runs.run("--", "touch", "made", cwd=workspace)
    other = build(tmp_path / "other", {})
    done = runs.run("-s", "workspace", "--workspace", other, "--", "true", cwd=workspace, status=125)
    assert f"is in use by a sandbox of '{workspace}'" in done.stderr


def test_a_program_that_names_a_missing_interpreter_cannot_be_executed(tmp_path: Path) -> None:
    place = build(tmp_path / "workspace", {"bad": "#!/no/such/interpreter\n"})
    (place / "bad").chmod(0o755)
    assert "interpreter" in runs.run("--", "./bad", cwd=place, status=126).stderr


# Endings


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_told_to_end(
    workspace: Path, confinement: str, number: signal.Signals
) -> None:
    with started("--confine", confinement, "--", "sh", "-c", SLEEPERS, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        status = process.wait(runs.PATIENCE)
    assert status == (-number if number is signal.SIGKILL else 128 + number)


def test_nothing_is_left_when_the_command_is_killed_at_whatever_moment(
    workspace: Path, confinement: str
) -> None:
    begun = time.monotonic()
    runs.run("--confine", confinement, "--", "true", cwd=workspace)
    usual = time.monotonic() - begun
    chance = random.Random(5)
    for turn in range(14):
        with started("--confine", confinement, "--", "sh", "-c", SLEEPERS, cwd=workspace) as process:
            # Moments are what is tested: spread over all of the start, half of them where most happens.
            moment = usual * (turn / 14 if turn % 2 else chance.uniform(0.6, 1.0))
            time.sleep(moment)
            process.kill()
            process.wait(runs.PATIENCE)
        runs.check_nothing_left(MARK)


# Kills the command at the call of one function, given by module and name.
KILLED_AT = """
import importlib, os, signal, sys
module, name = sys.argv.pop(1).split(":")
setattr(importlib.import_module(module), name, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))
from sandboxfs.cli.main import command
command()
"""


@pytest.mark.parametrize(
    "moment",
    [
        "sandboxfs.cli.run_command:parse",
        "sandboxfs.service.mount_plan:plan_mount",
        "sandboxfs.control.start_daemon:launch",
        "sandboxfs.control.start_daemon:_await_ready",
        "sandboxfs.runs.open_views:flock",
        "sandboxfs.runs.open_run:find_system",
        "sandboxfs.cli.run_command:_announce",
        "sandboxfs.runs.run:program_result",
    ],
)
def test_nothing_is_left_when_the_command_is_killed_at_a_step_of_its_own(
    workspace: Path, moment: str
) -> None:
    runs.run("--", "true", cwd=workspace)
    words = [sys.executable, "-c", KILLED_AT, moment, "run", "--", "sh", "-c", MARK]
    if moment.endswith("program_result"):
        words[-1] = "true"
    done = subprocess.run(words, cwd=workspace, capture_output=True, check=False, timeout=runs.PATIENCE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    runs.check_nothing_left(MARK)


@pytest.mark.parametrize(
    # The first is when it tries out what the filesystem can do.
    "moment",
    ["os:setxattr", "sandboxfs.state.store:dump_record", "sandboxfs.state.store:_write_whole"],
)
def test_nothing_is_left_when_the_first_run_ever_is_killed_while_its_sandbox_is_made(
    workspace: Path, moment: str
) -> None:
    words = [sys.executable, "-c", KILLED_AT, moment, "run", "--", "true"]
    done = subprocess.run(words, cwd=workspace, capture_output=True, check=False, timeout=runs.PATIENCE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    runs.check_nothing_left(MARK)
    assert sandboxes() == {}


def test_nothing_is_left_when_the_daemon_is_killed(workspace: Path, confinement: str) -> None:
    with started("--confine", confinement, "--", "sh", "-c", SLEEPERS, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lock = Path(os.environ["SANDBOXFS_STATE_DIR"], "sandboxes/workspace/lock")
        os.kill(int(lock.read_text()), signal.SIGKILL)
        _, complaint = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 125
    assert "the daemon of sandbox 'workspace' died" in complaint


def test_nothing_is_left_when_the_terminal_is_closed(
    workspace: Path, confinement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What cannot be written any more must not change the status either.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    words = runs.run_words("--confine", confinement, "--", "sh", "-c", SLEEPERS)
    with Terminal(words, cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        assert terminal.process.wait(runs.PATIENCE) == 128 + signal.SIGHUP


def test_an_interrupt_key_ends_the_program_and_the_command(workspace: Path, confinement: str) -> None:
    words = runs.run_words("--confine", confinement, "--", "sh", "-c", SLEEPERS)
    with Terminal(words, cwd=workspace) as terminal:
        terminal.wait_for("ready")
        terminal.type("\x03")
        assert terminal.end() == -signal.SIGINT


def test_background_processes_end_with_the_program(workspace: Path, confinement: str) -> None:
    inside = f"{MARK} & (setsid {MARK} &)"
    runs.run("--confine", confinement, "--", "sh", "-c", inside, cwd=workspace)
    assert runs.left_behind(MARK) == []


# The parent of a program ends what it leaves behind, and needs descriptors for it.
DISARMING = """
import os, resource, subprocess, sys
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
    print("disarmed")
except OSError:
    print("refused")
subprocess.Popen(sys.argv[1].split(), start_new_session=True)
"""


def test_a_program_cannot_keep_its_parent_from_ending_what_it_leaves(workspace: Path, tmp_path: Path) -> None:
    runs.require("landlock")
    words = ("--confine", "landlock", "--", runs.PYTHON, "-I", "-c", DISARMING, MARK)
    with open(tmp_path / "output", "wb") as output:
        subprocess.run(runs.run_words(*words), cwd=workspace, stdout=output, timeout=60, check=True)
    assert (tmp_path / "output").read_text() == "refused\n"
    assert runs.left_behind(MARK) == []


def test_a_command_that_cannot_start_its_daemon_leaves_nothing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", "/proc/nowhere")
    done = runs.run("--", "true", cwd=workspace, status=125)
    assert "hint: choose another place with SANDBOXFS_STATE_DIR" in done.stderr


# What is told at the end


def test_the_summary_names_changes_denials_and_what_to_do_next(workspace: Path) -> None:
    inside = "echo more >> file; rm dir/inner; echo x > added; echo y > script"
    done = runs.run("--rule", "script=ro", "--", "sh", "-c", inside, cwd=workspace, status=2)
    said = done.stderr.splitlines()
    assert (
        f"sandboxfs: sandbox 'workspace' of '{workspace}': 3 changes: 1 added, 1 modified, 1 deleted" in said
    )
    assert {"  A added", "  M file", "  D dir/inner"} <= set(said)
    assert "sandboxfs: write denied for 'script': read-only by rule 'script = ro' (--rule)" in said
    assert said[-1].startswith("review: sandboxfs diff -s workspace; sandboxfs commit -s workspace")
    again = runs.run("--", "sh", "-c", "echo z > another", cwd=workspace).stderr.splitlines()
    assert "  A another" in again
    assert "  A added" not in again
    assert "  … and 3 from before" in again
    quiet = runs.run("--quiet", "--", "sh", "-c", "echo z > third", cwd=workspace)
    assert quiet.stderr == ""


def test_a_run_that_changed_nothing_says_so(workspace: Path) -> None:
    words = ("--", "true")
    told = runs.run(*words, cwd=workspace).stderr
    assert told == "sandboxfs: nothing changed, and no sandbox is kept\n"
    runs.run("--", "touch", "made", cwd=workspace)
    runs.run("--", "rm", "made", cwd=workspace)
    told = runs.run(*words, cwd=workspace).stderr
    assert told.splitlines()[-1] == "sandboxfs: nothing changed in sandbox 'workspace'"


def test_what_happened_can_be_read_by_a_program(workspace: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    inside = "echo x > added; echo y > script; exit 4"
    runs.run("--json", report, "--rule", "script=ro", "--", "sh", "-c", inside, cwd=workspace, status=4)
    told = json.loads(report.read_text())
    assert (told["name"], told["status"], told["network"], told["broken"]) == ("workspace", 4, False, [])
    assert [(one["kind"], one["path"]) for one in told["sandboxes"][0]["changes"]] == [("added", "added")]
    assert [(one["access"], one["path"]) for one in told["sandboxes"][0]["denials"]] == [("write", "script")]


@pytest.mark.parametrize(
    ("options", "inside", "broken"),
    [
        (("--assert-no-writes", "dir/**"), "echo x > dir/new", "'dir/new' was written"),
        (("--assert-no-writes", "dir/**"), "echo x > dir/new; rm dir/new", "'dir/new' was written"),
        (("--assert-no-writes", "dir/**"), "chmod 600 dir/inner", "'dir/inner' was written"),
        (("--assert-no-writes", "dir/**"), "echo x > file; cat dir/inner", None),
        (("--assert-writes-only", "out/**"), "mkdir -p out/a; echo x > out/a/b", None),
        (("--assert-writes-only", "out/**"), "rm file", "'file' was written"),
        (("--assert-no-denials", "--rule", "file=ro"), "(echo x > file); true", "write denied for 'file'"),
        (("--assert-no-denials", "--rule", "file=ro"), "cat file", None),
    ],
)
def test_what_is_asserted_of_a_run_is_checked(
    workspace: Path, options: tuple[str, ...], inside: str, broken: str | None
) -> None:
    done = runs.run(*options, "--", "sh", "-c", inside, cwd=workspace, status=0 if broken is None else 1)
    assert ("does not hold" in done.stderr) is (broken is not None)
    assert broken is None or f"sandboxfs: does not hold: {broken}" in done.stderr


def test_changes_are_committed_when_the_program_succeeds(tmp_path: Path) -> None:
    place = build(tmp_path / "workspace", PROJECT)
    runs.run("--commit", "--", "sh", "-c", "echo x > added; exit 1", cwd=place, status=1)
    assert not (place / "added").exists()
    runs.run("--commit", "--new", "--", "sh", "-c", "echo y > more", cwd=place)
    assert not (place / "added").exists()
    assert (place / "more").read_text() == "y\n"


def test_changes_are_discarded_on_request(workspace: Path) -> None:
    runs.run("--discard", "--", "sh", "-c", "echo x > added", cwd=workspace)
    assert runs.run("--", "ls", cwd=workspace).stdout == "dir\nfile\nscript\n"


@pytest.mark.parametrize("ending", ["--discard", "--commit"])
def test_a_quiet_run_does_not_tell_what_it_did_with_the_changes(tmp_path: Path, ending: str) -> None:
    runs.require("bubblewrap")
    place = build(tmp_path / "workspace", PROJECT)
    done = runs.run("--quiet", ending, "--", "sh", "-c", "echo x > added", cwd=place)
    assert (done.stdout, done.stderr) == ("", "")
    assert (place / "added").exists() is (ending == "--commit")
    assert run_sandboxfs("diff", "--name-status", "-s", "workspace").stdout == ""


def test_changes_are_discarded_also_when_what_was_asserted_does_not_hold(workspace: Path) -> None:
    asserted = ("--discard", "--assert-no-writes", "added")
    done = runs.run(*asserted, "--", "sh", "-c", "echo x > added", cwd=workspace, status=1)
    assert "does not hold: 'added' was written" in done.stderr
    assert "review:" not in done.stderr
    assert runs.run("--", "ls", cwd=workspace).stdout == "dir\nfile\nscript\n"


def test_a_person_is_asked_on_the_terminal_what_to_do(tmp_path: Path) -> None:
    place = build(tmp_path / "workspace", PROJECT)
    with Terminal(runs.run_words("--review", "--", "sh", "-c", "echo x > added"), cwd=place) as terminal:
        terminal.wait_for("discard [x]?")
        terminal.type("c\n")
        assert terminal.end() == 0
    assert (place / "added").read_text() == "x\n"


@pytest.mark.parametrize(
    ("dialogue", "left"),
    [
        ((("z", "d, c, p, k or x"), ("k", "kept")), {"A added"}),
        ((("d", "+fresh line"), ("k", "kept")), {"A added"}),
        ((("p", "added"), ("n", "discard [x]?"), ("k", "kept")), {"A added"}),
        ((("x", "discarded"),), set()),
    ],
)
def test_a_person_can_look_pick_keep_and_discard(
    workspace: Path,
    dialogue: tuple[tuple[str, str], ...],
    left: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAGER", "cat")
    words = runs.run_words("--review", "--", "sh", "-c", "echo fresh line > added")
    with Terminal(words, cwd=workspace) as terminal:
        terminal.wait_for("discard [x]?")
        for answer, shown in dialogue:
            terminal.type(f"{answer}\n")
            terminal.wait_for(shown)
        assert terminal.end() == 0
    changed = run_sandboxfs("diff", "--name-status", "-s", "workspace").stdout
    assert {" ".join(line.split()) for line in changed.splitlines()} == left
