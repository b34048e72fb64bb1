"""Which variables reach a confined program?"""

import pytest

from sandboxfs.confine.environment import environment_for, is_secret, parse_assignment
from sandboxfs.errors import UsageError


@pytest.mark.parametrize(
    "name",
    [
        *(
            "GITHUB_TOKEN",
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
        ),
        *("PGPASSWORD", "MYSQL_PWD", "DB_PASS", "DATABASE_URL", "REDIS_URL", "SENTRY_DSN", "NPM_TOKEN"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SECRET", "my_secret", "npm_config__authToken", "GH_PAT"),
        *(
            "SSHPASS",
            "PASSWORD1",
            "DB_PASSWORD_2",
            "SECRETKEY",
            "PRIVATEKEY",
            "ACCESSKEY",
            "MyApiKey2",
            "JWT",
            "JWT_SIGNING",
        ),
        *("BEARER", "STRIPE_SK", "AWS_CREDS", "VAULT_PASSCODE", "TOKEN2", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_a_secret_is_told_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "PWD", "OLDPWD", "TERM", "LANG", "KEYMAP", "TOKENIZERS_PARALLELISM", "PASSENGER"),
        *("SSH_ASKPASS", "GIT_CONFIG_KEY_0", "AWS_PROFILE", "AWS_REGION", "MONKEY", "COMPASS", "PATTERN"),
        *(
            "KEYBOARD",
            "KEYTIMEOUT",
            "AUTHOR",
            "AUTH0_DOMAIN",
            "BYPASS",
            "SKIP",
            "TASK",
            "PATH2",
            "HTTP_PROXY",
        ),
    ],
)
def test_what_is_no_secret_is_passed_on(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://user:pw@proxy:3128", True),
        ("https://:pw@host/path", True),
        ("first, socks5h://user:p:w@host", True),
        ("http://proxy:3128", False),
        ("http://user@proxy:3128", False),
        ("http://[::1]:3128/a@b", False),
        ("https://host/a:b@c", False),
        ("https://host?a:b@c", False),
        ("ssh://git@host:22/place", False),
        ("user:pw@host", False),
    ],
)
def test_an_address_with_a_password_is_a_secret(value: str, secret: bool) -> None:
    assert is_secret("HTTP_PROXY", value) is secret
    made = environment_for({"http_proxy": value}, [], {}, clear=False)
    assert made.withheld == (("http_proxy",) if secret else ())
    named = environment_for({"http_proxy": value}, [("http_proxy", None)], {}, clear=False)
    assert named.variables == {"http_proxy": value}


def test_secrets_are_withheld_unless_named() -> None:
    host = {"A_TOKEN": "1", "B_TOKEN": "2", "PLAIN": "3"}
    made = environment_for(host, [("B_TOKEN", None)], {}, clear=False)
    assert made.variables == {"B_TOKEN": "2", "PLAIN": "3"}
    assert made.withheld == ("A_TOKEN",)


def test_what_sandboxfs_sets_wins_over_everything() -> None:
    host = {"SANDBOXFS": "0", "SANDBOXFS_STATE_DIR": "/state"}
    made = environment_for(host, [("SANDBOXFS", "2")], {"SANDBOXFS": "1"}, clear=False)
    assert made.variables == {"SANDBOXFS": "1"}


def test_sockets_of_the_session_are_not_passed_on_and_no_secret() -> None:
    made = environment_for({"SSH_AUTH_SOCK": "/x", "DISPLAY": ":0"}, [], {}, clear=False)
    assert made.variables == {}
    assert made.withheld == ()


def test_clearing_keeps_what_every_program_needs() -> None:
    made = environment_for({"PATH": "/bin", "LC_ALL": "C", "EDITOR": "vi"}, [("X", "1")], {}, clear=True)
    assert made.variables == {"PATH": "/bin", "LC_ALL": "C", "X": "1"}


def test_assignments_are_read() -> None:
    assert parse_assignment("A") == ("A", None)
    assert parse_assignment("A=") == ("A", "")
    assert parse_assignment("A=b=c") == ("A", "b=c")
    with pytest.raises(UsageError, match="expected NAME"):
        parse_assignment("=b")


def test_a_value_can_be_given_without_being_our_own() -> None:
    host = {"PATH": "/bin", "SANDBOXFS_ENV_PATH": "/inside", "SANDBOXFS_ENV_OTHER": "1"}
    made = environment_for(host, [("PATH", None)], {}, clear=False)
    assert made.variables == {"PATH": "/inside"}


def test_naming_a_variable_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="no such variable"):
        environment_for({}, [("MISSING", None)], {}, clear=False)
