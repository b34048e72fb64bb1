"""Flags: raised for what deserves a second look, and not for everyday changes."""

import random
import stat
import string
import time

import pytest

from sandboxfs.review.flags import LARGE, Look, flags

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120777
RANDOM = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=64)).encode()


def words(path: bytes, old: Look | None, new: Look | None) -> list[str]:
    return [flag.value for flag in flags(path, old, new)]


def added(path: bytes, head: bytes = b"") -> list[str]:
    return words(path, None, Look(FILE, len(head), head))


def test_everyday_changes_have_no_flags() -> None:
    assert words(b"src/a.py", Look(FILE, 1, b"x"), Look(FILE, 1, b"y")) == []
    assert words(b"bin/tool", Look(EXECUTABLE), Look(EXECUTABLE)) == []
    assert words(b"lib/dir", None, Look(stat.S_IFDIR | 0o2755)) == []
    assert words(b"a", Look(FILE), None) == []


def test_file_that_becomes_executable_is_flagged() -> None:
    assert words(b"a", None, Look(EXECUTABLE)) == ["executable"]
    assert words(b"a", Look(FILE), Look(EXECUTABLE)) == ["executable"]
    assert words(b"a", Look(LINK, target=b"b"), Look(EXECUTABLE)) == ["executable"]


@pytest.mark.parametrize("target", [b"/etc/passwd", b"..", b"../../x", b"x/../../../y", b"/", b"../../w/x"])
def test_symlink_that_leaves_the_workspace_is_flagged(target: bytes) -> None:
    assert words(b"d", None, Look(LINK, target=target)) == ["outside"]


@pytest.mark.parametrize("target", [b"x", b"../x", b"./../x/../y", b"...", b""])
def test_symlink_that_stays_is_not(target: bytes) -> None:
    assert words(b"d/e", None, Look(LINK, target=target)) == []


def test_absolute_symlink_into_the_workspace_stays_when_its_place_is_known() -> None:
    for target in (b"/w/x", b"/w", b"/w/x/../y"):
        assert flags(b"l", None, Look(LINK, target=target), root=b"/w") == []
    for target in (b"/w-evil/x", b"/w/../x", b"/"):
        assert flags(b"l", None, Look(LINK, target=target), root=b"/w") == ["outside"]


@pytest.mark.parametrize(
    "path",
    [
        b".git/hooks/pre-commit",
        b".git/config",
        b"vendor/lib/.git/config",
        b".git/modules/sub/hooks/post-merge",
        b".envrc",
        b"sub/.envrc",
        b".vscode/tasks.json",
        b".idea/runConfigurations/a.xml",
        b".husky/pre-push",
        b".github/workflows/ci.yml",
        b".gitlab-ci.yml",
        b".bashrc",
        b".pre-commit-config.yaml",
        b"setup.py",
        b".claude/settings.local.json",
        b".mcp.json",
        b"site/evil.pth",
        b".git/hooks/odd\nname",
        b"sub/.git",
    ],
)
def test_file_that_runs_by_itself_is_flagged(path: bytes) -> None:
    assert added(path) == ["runs"]


@pytest.mark.parametrize(
    "path",
    [b"Makefile", b"git/hooks/a", b".github/README.md", b"my.envrc", b".git/index", b".vscode/x", b"config"],
)
def test_file_that_only_looks_alike_is_not(path: bytes) -> None:
    assert added(path) == []


def test_symlink_in_place_of_a_directory_that_runs_is_flagged() -> None:
    assert words(b".github/workflows", None, Look(LINK, target=b"../x")) == ["runs"]


def test_configuration_of_a_planted_bare_repository_is_flagged() -> None:
    assert added(b"docs/config", b"[core]\n\tfsmonitor = evil\n") == ["runs"]


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (b"package.json", b'{"scripts": {"a": "b"}}', b'{"scripts": {"a": "b"}, "version": "2"}', []),
        (b"package.json", b'{"scripts": {"a": "b"}}', b'{"scripts": {"postinstall": "x"}}', ["runs"]),
        (b"package.json", b"{}", b'{"scripts": ', ["runs"]),
        (b"package.json", b"{}", b"[" * 100_000, ["runs"]),
        (b"pyproject.toml", b"[project]\n", b"[project]\nversion = '2'\n", []),
        (b"pyproject.toml", b"[project]\n", b"[build-system]\nbackend-path = ['.']\n", ["runs"]),
        (b"pyproject.toml", b"", b"[tool.hatch.build.hooks.custom]\npath = 'x.py'\n", ["runs"]),
        (b"pyproject.toml", b"", b"\xff", ["runs"]),
    ],
)
def test_package_file_is_flagged_when_what_it_runs_changes(
    path: bytes, old: bytes, new: bytes, expected: list[str]
) -> None:
    assert words(path, Look(FILE, len(old), old), Look(FILE, len(new), new)) == expected


def test_only_a_file_above_ten_mebibytes_is_large() -> None:
    assert words(b"a", None, Look(FILE, LARGE)) == []
    assert words(b"a", None, Look(FILE, LARGE + 1)) == ["large"]


SECRETS = [
    b"-----BEGIN " + b"OPENSSH PRIVATE KEY-----\n",
    b"-----BEGIN " + b"PRIVATE KEY-----\n",
    b"key = AKIA" + b"ABCDEFGHIJKLMNOP",
    b"ghp_" + RANDOM[:36],
    b"xoxb-" + RANDOM[:30],
    b"sk-ant-api03-" + RANDOM[:40],
    b"DB_PASSWORD=" + RANDOM[:24],
    b'"client_secret": "' + RANDOM[:32] + b'"',
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_is_flagged_once_it_is_new(text: bytes) -> None:
    assert added(b"a.txt", b"x\n" + text + b"\n") == ["secret"]
    assert words(b"a.txt", Look(FILE, 1, text), Look(FILE, 1, b"more\n" + text)) == []


@pytest.mark.parametrize(
    "text",
    [
        b"password = os.environ['DATABASE_PASSWORD_2']",
        b"token = parse_token_from_request_header(request)",
        b"secret: your-secret-key-goes-here-1",
        b"token = aaaaaaaaaaaaaaaaaaaaaaaaaaaa1",
        b"commit 0123abcd0123abcd0123abcd0123abcd0123abcd",
        b"-----BEGIN PUBLIC KEY-----",
        b"task-runner-configuration-for-the-long-named-thing",
    ],
)
def test_what_is_no_secret_is_not(text: bytes) -> None:
    assert added(b"a.txt", text) == []


def test_private_key_is_known_by_its_name() -> None:
    assert added(b".ssh/id_ed25519") == ["secret"]


def test_rights_of_another_user_and_devices_are_flagged() -> None:
    assert words(b"a", Look(EXECUTABLE), Look(0o104755)) == ["setuid"]
    assert words(b"a", Look(0o104755), Look(0o104755)) == []
    assert words(b"a", None, Look(stat.S_IFBLK | 0o600)) == ["device"]
    assert words(b"a", Look(0o040755), Look(0o042755)) == ["setuid"]
    assert words(b"a", Look(0o042755), Look(0o042755)) == []
    # It may have that from the directory around it.
    assert words(b"a", None, Look(0o042755)) == []


def test_ten_thousand_files_take_about_a_second() -> None:
    head = b"".join(b"def function_%d(token): return token + %d\n" % (number, number) for number in range(50))
    began = time.process_time()
    for number in range(10_000):
        flags(b"src/package/module_%d.py" % number, Look(FILE, 1, head), Look(FILE, 1, head + b"x"))
    assert time.process_time() - began < 10, "generous: about a second on a quiet machine"
