"""The configuration is understood or refused, never guessed at."""

import os
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.config import (
    TEMPLATE,
    Allow,
    AuditLevel,
    AuditSettings,
    Symlinks,
    UserConfig,
    read_project_rules,
    read_user_config,
)
from sandboxfs.policy.grants import Extent, KeptGrant
from sandboxfs.policy.model import Access, Mode, Rule, RuleSource, SourceKind

FULL = """\
[workspace]
root = "/srv/app"
mode = "ro"
enabled = false
symlinks = "keep"

[[workspace.allow]]
path = "~/lib"
mode = "ro"
[[workspace.allow]]
path = "gen"

[[rule]]
path = "**/.env*"
mode = "hide"
[[rule]]
mode = "deny"
path = "*.pem"

[log]
level = "all"
size = 65536
keep = 1
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_missing_file_means_the_defaults(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "config.toml"
    assert read_user_config(missing) == UserConfig(root=None, mode=Mode.RW)


def test_variables_are_passed_on_by_workspace_or_everywhere(tmp_path: Path) -> None:
    text = (
        '[[environment]]\nworkspace = "/srv/app"\npass = ["A", "B_*"]\n'
        '[[environment]]\nworkspace = "/srv/app-evil"\npass = ["D"]\n'
        '[[environment]]\npass = ["C"]\n'
    )
    config = read_user_config(write(tmp_path, text))
    assert config.variables_for(Path("/srv/app")) == ("A", "B_*", "C")
    assert config.variables_for(Path("/srv/app/inner")) == ("A", "B_*", "C")
    assert config.variables_for(Path("/srv")) == ("C",)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_user_config(write(tmp_path, "")) == UserConfig()
    assert read_user_config(write(tmp_path, "[workspace]\n[log]\n")) == UserConfig()
    assert read_user_config(Path("/dev/null")) == UserConfig()


def test_every_key_is_read_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    file = str(path)
    config = read_user_config(path)
    assert config == UserConfig(
        root=Path("/srv/app"),
        mode=Mode.RO,
        enabled=False,
        symlinks=Symlinks.KEEP,
        allows=(
            Allow("~/lib", Mode.RO, RuleSource(SourceKind.USER, file, 7)),
            Allow("gen", Mode.RW, RuleSource(SourceKind.USER, file, 10)),
        ),
        rules=(
            Rule("**/.env*", Mode.HIDE, RuleSource(SourceKind.USER, file, 13)),
            Rule("*.pem", Mode.DENY, RuleSource(SourceKind.USER, file, 16)),
        ),
        audit=AuditSettings(AuditLevel.ALL, 65536, 1),
    )
    assert str(config.mode_source) == f"{file}:3"


def test_lines_are_counted_in_files_with_carriage_returns_too(tmp_path: Path) -> None:
    config = read_user_config(write(tmp_path, FULL.replace("\n", "\r\n")))
    assert [rule.source.line for rule in config.rules] == [13, 16]


def test_rules_may_be_written_as_inline_tables(tmp_path: Path) -> None:
    text = 'rule = [\n  { path = "a", mode = "ro" },\n  { path = "b", mode = "rw" },\n]\n'
    config = read_user_config(write(tmp_path, text))
    assert [(rule.pattern, rule.source.line) for rule in config.rules] == [("a", 2), ("b", 3)]


def test_a_tilde_in_root_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_user_config(write(tmp_path, 'workspace.root = "~/app"')).root == Path("/home/someone/app")


def test_the_environment_overrides_the_root_and_makes_it_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = read_user_config(write(tmp_path, FULL))
    assert config.overridden_by({"SANDBOXFS_WORKSPACE": ""}) is config
    changed = config.overridden_by({"SANDBOXFS_WORKSPACE": "~/other"})
    assert (changed.root, changed.mode) == (Path("/home/someone/other"), Mode.RW)
    assert str(changed.mode_source) == "SANDBOXFS_WORKSPACE"
    assert changed.rules == config.rules


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("[workspace\n", 1, "malformed TOML"),
        ('[workspace]\nroot = "/a"\nmode = rw\n', 3, "malformed TOML"),
        ("a = 1\na = 2\n", 2, "malformed TOML"),
        ('[workspace]\n\nroots = "/a"\n', 3, "'workspace.roots': unknown key; did you mean 'root'?"),
        ("[workspaces]\n", 1, "'workspaces': unknown key; did you mean 'workspace'?"),
        ("[[rules]]\n", 1, "'rules': unknown key; did you mean 'rule'?"),
        (
            'zzzz = "red"\n',
            1,
            "unknown key; expected 'workspace', 'rule', 'grant', 'log', 'environment', 'execute' or 'ask'",
        ),
        ("[log]\nlevle = 1\n", 2, "'log.levle': unknown key; did you mean 'level'?"),
        ("[workspace]\nroot = 3\n", 2, "'workspace.root': expected a string, found a number"),
        ('[workspace]\nroot = "app"\n', 2, "'workspace.root': expected an absolute path"),
        ('[workspace]\nroot = "~nobody-here/x"\n', 2, "'workspace.root': no such user in '~nobody-here/x'"),
        ('[workspace]\nmode = "rwx"\n', 2, "'workspace.mode': expected 'ro' or 'rw', found 'rwx'"),
        ('[workspace]\nmode = "hide"\n', 2, "'workspace.mode': expected 'ro' or 'rw', found 'hide'"),
        ("[workspace]\nmode = true\n", 2, "'workspace.mode': expected 'ro' or 'rw', found a boolean"),
        ("[workspace]\nenabled = 1\n", 2, "'workspace.enabled': expected true or false, found a number"),
        ('[workspace]\nsymlinks = "x"\n', 2, "'workspace.symlinks': expected 'guard', 'keep' or 'deny'"),
        ("workspace = 1\n", 1, "'workspace': expected a table, found a number"),
        ("workspace.mode = 1979-05-27\n", 1, "'workspace.mode': expected 'ro' or 'rw', found a date"),
        ('"workspace" . "mode" = "no"\n', 1, "'workspace.mode': expected 'ro' or 'rw'"),
        ('workspace = { "mo\\u0064e" = "no" }\n', 1, "'workspace.mode': expected 'ro' or 'rw'"),
        ("\n[rule]\n", 2, "'rule': expected [[rule]] tables, found a table"),
        ('rule = ["a"]\n', 1, "'rule': expected [[rule]] tables, found a string"),
        ('[[rule]]\npath = "a"\nmode = "ro"\n[[rule]]\nmode = "ro"\n', 4, "'rule.path': missing"),
        ('# [[rule]]\n[[rule]]\npath = "a"\n', 2, "'rule.mode': missing"),
        ('[[rule]]\npath = "a"\nmod = "ro"\n', 3, "'rule.mod': unknown key; did you mean 'mode'?"),
        ('[[rule]]\nmode = "ro"\npath = ""\n', 3, "'rule.path': the pattern is empty"),
        ('[[rule]]\nmode = "ro"\npath = "a/../b"\n', 3, "'rule.path': '..' cannot be part of a pattern"),
        ('[[rule]]\nmode = "ro"\npath = "[a"\n', 3, "'rule.path': unbalanced '['"),
        ('[[rule]]\nmode = "ro"\npath = 1\n', 3, "'rule.path': expected a string, found a number"),
        (
            '[[rule]]\npath = "a"\nmode = "r"\n',
            3,
            "'rule.mode': expected 'hide', 'deny', 'ro', 'rw', 'hold' or 'ask', found 'r'",
        ),
        (
            '[[rule]]\npath = "a"\nmode = "rw"\nexecute = "maybe"\n',
            4,
            "'rule.execute': expected 'allow', 'ask' or 'deny', found 'maybe'",
        ),
        ('[[workspace.allow]]\nmode = "ro"\n', 1, "'workspace.allow.path': missing"),
        ('[[workspace.allow]]\npath = ""\n', 2, "'workspace.allow.path': expected a path"),
        ('[[workspace.allow]]\npath = "a"\nmode = "no"\n', 3, "'workspace.allow.mode': expected 'hide'"),
        ('[log]\nlevel = "some"\n', 2, "'log.level': expected 'denials', 'writes' or 'all'"),
        ("[[environment]]\n", 1, "'environment.pass': missing"),
        (
            '[[environment]]\npass = "A"\n',
            2,
            "'environment.pass': expected an array of strings, found a string",
        ),
        ('[[environment]]\npass = ["A", "B=1"]\n', 2, "expected names of variables or globs, found 'B=1'"),
        (
            '[[environment]]\nworkspace = "app"\npass = ["A"]\n',
            2,
            "'environment.workspace': expected an absolute path or one starting with '~', found 'app'",
        ),
        (
            '[workspace]\nroot = "~a\\u0000b"\n',
            2,
            "'workspace.root': expected an absolute path or one starting with '~', found",
        ),
        ("[log]\nsize = 10\n", 2, "'log.size': expected a whole number of at least 65536, found 10"),
        ("[log]\nkeep = 0\n", 2, "'log.keep': expected a whole number of at least 1, found 0"),
        ("[log]\nkeep = true\n", 2, "'log.keep': expected a whole number of at least 1, found a boolean"),
        (b"[workspace]\n# \xff\n", 2, "configuration is not UTF-8 text"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_line_key_and_expectation(
    tmp_path: Path, text: str | bytes, line: int, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_user_config(path)
    assert refused.value.message.startswith(f"{path}:{line}: ")
    assert complaint in refused.value.message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read configuration .*: Is a directory"):
        read_user_config(tmp_path)


def test_a_file_that_is_too_large_is_refused_without_being_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with path.open("wb") as file:
        file.truncate(10_000_000)
    with pytest.raises(UsageError, match="configuration is larger than 1024 KiB"):
        read_user_config(path)


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        read_user_config(write(tmp_path, "a = " + "[" * 100_000))


def test_a_number_of_more_digits_than_can_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"malformed TOML: .*digits"):
        read_user_config(write(tmp_path, "a = " + "1" * 5_000))


def test_the_template_changes_nothing_and_its_settings_are_understood(tmp_path: Path) -> None:
    assert read_user_config(write(tmp_path, TEMPLATE)) == UserConfig()
    lines = TEMPLATE.splitlines()
    assert all(line == "" or line.startswith("#") for line in lines)
    settings = "\n".join(line[1:] if line[:1] == "#" and line[1:2].strip() else "" for line in lines)
    config = read_user_config(write(tmp_path, settings))
    defaults = UserConfig(
        root=config.root,
        allows=config.allows,
        rules=config.rules,
        passed=config.passed,
        grants=config.grants,
        asked_programs=config.asked_programs,
    )
    assert config == defaults
    assert config.asked_programs.command == ("notify-ask", "--urgent")
    assert config.asked_programs.url == "https://bot.example/ask"
    assert config.asked_programs.token_file is not None
    assert config.root
    assert config.allows
    assert config.passed
    assert [(grant.pattern, grant.target) for grant in config.grants] == [("**/.env*", ".env")]
    assert [str(rule) for rule in config.rules] == [
        "**/.env.example = ro",
        "**/.env* = hide",
        "*.pem = hide",
        "** = ask, ignored",
        "vendor/** = ro",
    ]


GRANT = """\
[[grant]]
workspace = "/srv/app"
rule = "**/.env*"
source = "command line"
access = "read"
decision = "allow"
"""


def test_a_kept_answer_is_read_with_its_line(tmp_path: Path) -> None:
    text = GRANT + 'directory = "."\nprogram = "/usr/bin/cat"\nreason = "why not"\n'
    path = write(tmp_path, f"# mine\n\n{text}")
    (grant,) = read_user_config(path).grants
    assert grant == KeptGrant(
        "/srv/app",
        "**/.env*",
        SourceKind.COMMAND_LINE,
        Access.READ,
        True,
        Extent.DIRECTORY,
        "",
        "/usr/bin/cat",
        "why not",
    )
    assert str(grant.source) == f"{path}:3"
    assert grant.toml() == text


@pytest.mark.parametrize(
    ("changed", "line", "complaint"),
    [
        ("", 1, "'grant.path': expected one of 'path', 'directory', 'pattern' or 'content'"),
        ('path = "a"\ndirectory = "b"\n', 8, "'grant.directory': expected one of"),
        ('path = "/a"\n', 7, "'grant.path': expected a path inside the workspace, found '/a'"),
        ('path = ""\n', 7, "'grant.path': expected a path inside the workspace"),
        ('path = "."\n', 7, "'grant.path': expected a path inside the workspace"),
        ('path = "a/../b"\n', 7, "'grant.path': expected a path inside the workspace"),
        ('path = "a//b"\n', 7, "'grant.path': expected a path inside the workspace"),
        ('path = "a\\u0000"\n', 7, "'grant.path': expected a path inside the workspace"),
        ('pattern = "[a"\n', 7, "'grant.pattern': unbalanced '['"),
        ('content = "abc"\n', 7, "'grant.content': expected a SHA-256 digest"),
        ("path = 1\n", 7, "'grant.path': expected a string, found a number"),
        ('path = "a"\nprogram = "cat"\n', 8, "'grant.program': expected the absolute path"),
        ('path = "a"\nuntil = "x"\n', 8, "'grant.until': unknown key"),
        ('path = "a"\nreason = 1\n', 8, "'grant.reason': expected a string"),
    ],
)
def test_a_malformed_kept_answer_is_refused(tmp_path: Path, changed: str, line: int, complaint: str) -> None:
    path = write(tmp_path, GRANT + changed)
    with pytest.raises(UsageError) as refused:
        read_user_config(path)
    assert refused.value.message.startswith(f"{path}:{line}: ")
    assert complaint in refused.value.message


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('workspace = "/srv/app"\n', "", "'grant.workspace': missing"),
        ('"/srv/app"', '"app"', "'grant.workspace': expected an absolute path"),
        ('rule = "**/.env*"\n', "", "'grant.rule': missing"),
        ('access = "read"', 'access = "write"', "'grant.access': expected 'read' or 'execute'"),
        ('"allow"', '"ask"', "'grant.decision': expected 'allow' or 'deny', found 'ask'"),
        (
            '"command line"',
            '"runtime"',
            "'grant.source': expected 'command line', 'project', 'user' or 'workspace'",
        ),
        ("[[grant]]", "[grant]", "'grant': expected [[grant]] tables"),
    ],
)
def test_a_kept_answer_says_which_rule_asked_and_what_was_said(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read_user_config(write(tmp_path, GRANT.replace(old, new) + 'path = "a"\n'))
    assert complaint in refused.value.message


class TestProjectFile:
    """The file that comes with a project is untrusted."""

    def write(self, folder: Path, text: str) -> None:
        (folder / ".sandboxfs.toml").write_text(text)

    def test_a_missing_file_has_no_rules(self, tmp_path: Path) -> None:
        assert read_project_rules(tmp_path) == ()

    def test_its_rules_are_named_by_file_and_line(self, tmp_path: Path) -> None:
        self.write(tmp_path, '# ours\n[[rule]]\npath = "src/**"\nmode = "ro"\n')
        [rule] = read_project_rules(tmp_path)
        assert rule == Rule("src/**", Mode.RO, RuleSource(SourceKind.PROJECT, ".sandboxfs.toml", 2))

    def test_anything_but_rules_is_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path, '[workspace]\nmode = "rw"\n')
        with pytest.raises(UsageError, match=r"^\.sandboxfs\.toml:1: 'workspace': unknown key; expected"):
            read_project_rules(tmp_path)

    def test_it_may_not_have_rules_without_number(self, tmp_path: Path) -> None:
        self.write(tmp_path, "".join(f'[[rule]]\npath = "{n}"\nmode = "ro"\n' for n in range(1001)))
        with pytest.raises(UsageError, match="more than 1000 rules"):
            read_project_rules(tmp_path)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("password = 1\n")
        (tmp_path / ".sandboxfs.toml").symlink_to("secret")
        with pytest.raises(UsageError, match=r"^\.sandboxfs\.toml: not a regular file"):
            read_project_rules(tmp_path)

    def test_a_fifo_does_not_stop_it(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / ".sandboxfs.toml")
        with pytest.raises(UsageError, match="not a regular file"):
            read_project_rules(tmp_path)
