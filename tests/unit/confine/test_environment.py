"""Which variables reach a confined program?"""

from collections.abc import Callable

import pytest

from sandboxfs.confine.environment import environment_for, is_permitted, looks_secret, parse_assignment
from sandboxfs.errors import UsageError
from tests.support.growth import grows_linearly

_VALUES = ["plain", "/a/place"]


@pytest.mark.parametrize("value", _VALUES)
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
        *(
            "PGPASSWORD",
            "MYSQL_PWD",
            "DB_PASS",
            "DBPASS",
            "DATABASE_URL",
            "REDIS_URL",
            "SENTRY_DSN",
            "NPM_TOKEN",
        ),
        *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_API_KEY", "SECRET", "my_secret", "npm_config__authToken"),
        *(
            "SSHPASS",
            "PASSWORD1",
            "DB_PASSWORD_2",
            "SECRETKEY",
            "PRIVATEKEY",
            "ACCESSKEY",
            "MyApiKey2",
            "JWT",
        ),
        *("BEARER", "STRIPE_SK", "AWS_CREDS", "VAULT_PASSCODE", "TOKEN2", "AZURE_STORAGE_CONNECTION_STRING"),
        *("ROOTPW", "SMTP_PW", "PRIVATE_PEM", "AZURE_STORAGE_SAS", "SLACK_WEBHOOK_URL", "GIT_CONFIG_VALUE_0"),
        *("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "COMPOSER_AUTH", "BUNDLE_GITHUB__COM", "NIX_CONFIG"),
        # among what is passed on by its first or last letters
        *(
            "CARGO_REGISTRY_TOKEN",
            "CARGO_REGISTRIES_OURS_TOKEN",
            "NODE_AUTH_TOKEN",
            "CONDA_TOKEN",
            "UV_PUBLISH_TOKEN",
        ),
        *("UV_INDEX_OURS_PASSWORD", "PYTHON_KEYRING_PASS", "PIP_TOKEN", "AUTH_HEADER_PATH", "SECRET_DIR"),
        # what nobody has heard of
        *("ANYTHING", "XYZ", "DEPLOY", "KUBECONFIG", "VAULT_ADDR"),
    ],
)
def test_a_variable_that_nobody_vouches_for_is_not_passed_on(name: str, value: str) -> None:
    assert not is_permitted(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "en_GB.UTF-8") for name in ("LANG", "LC_ALL", "LANGUAGE", "TZ")),
        *(
            (name, "1")
            for name in ("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "CI", "GITHUB_ACTIONS", "DEBUG")
        ),
        *((name, "/usr/bin/x") for name in ("EDITOR", "PAGER", "CC", "CXX", "LD", "PKG_CONFIG", "SHELL")),
        *((name, "-O2 -g") for name in ("CFLAGS", "LDFLAGS", "RUSTFLAGS", "GOFLAGS", "MAKEFLAGS")),
        *((name, "/opt/x") for name in ("JAVA_HOME", "CARGO_HOME", "GOPATH", "VIRTUAL_ENV", "CONDA_PREFIX")),
        *(
            (name, "/opt/x")
            for name in ("ANDROID_SDK_ROOT", "NVM_DIR", "PNPM_HOME", "XDG_CONFIG_HOME", "MY_OWN_DIR")
        ),
        *(
            (name, "/a:/b")
            for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "MANPATH", "PKG_CONFIG_PATH")
        ),
        *(
            (name, "/ca.pem")
            for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT")
        ),
        *((name, "http://proxy:3128") for name in ("http_proxy", "HTTPS_PROXY", "All_Proxy")),
        ("no_proxy", "localhost,.example.org"),
        ("PIP_INDEX_URL", "https://pypi.example.org/simple"),
        ("NODE_OPTIONS", "--max-old-space-size=4096"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PWD", "/here"),
        ("GIT_AUTHOR_NAME", "Somebody"),
    ],
)
def test_what_programs_need_and_what_tells_nothing_is_passed_on(name: str, value: str) -> None:
    assert is_permitted(name, value)


@pytest.mark.parametrize(
    "value",
    [
        *("ghp_" + "a1" * 18, "github_pat_" + "a1" * 20, "glpat-" + "a1" * 10, "xoxb-1234-" + "a1" * 10),
        *("sk-" + "a1" * 16, "sk-ant-api03-" + "a1" * 16, "sk_live_" + "a1" * 12, "hf_" + "a1" * 17),
        *("AKIA" + "A1" * 8, "AIza" + "a1" * 18, "npm_" + "a1" * 18, "pypi-AgEI" + "a1" * 30),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        "https://hooks.slack.com/services/T0/B0/abc",
        "-Dorg.gradle.project.signing.password=hunter2 -Xmx1g",
        "--header 'Authorization: Basic abc'",
        "Server=db;User=x;Password=hunter2",
        *("hvs." + "a1" * 12, "gsk_" + "a1" * 26, "glrt-" + "a1" * 10, "sntrys_" + "a1" * 20),
        *("dapi" + "a1" * 16, "AGE-SECRET-KEY-1" + "QP" * 29, "x.atlasv1." + "a1" * 20),
        "https://store.example.org/b?sv=2022&sig=abc%3D",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=YWJj",
        # defined within flags, or given in the next word
        *(" -j4 -- DB_PASS=x", "-Ddb.pwd=hunter2", "-DDB_PASS=hunter2", "-Psigning.keyPass=hunter2"),
        *("-Xmx1g -Dpwd=x", "-J-Dpw=hunter2", "-DdbPwd=x", "-Dauth=Basic_abc", "--auth x", "-pass hunter2"),
        *("-O2 --db-pass=x", '-DKEY="abc"', "a=1,key=abc", "A=1;PWD_OF_DB=x"),
    ],
)
def test_a_secret_is_told_by_its_value_under_any_name(value: str) -> None:
    assert looks_secret("CFLAGS", value)
    assert not is_permitted("CFLAGS", value)


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://user:pw@proxy:3128", True),
        ("https://:pw@host/path", True),
        ("first, socks5h://user:p:w@host", True),
        ("http://proxy:3128", False),
        ("http://user@proxy:3128", True),
        ("http://user:p/w@proxy:3128", True),
        ("http://user:/pw@proxy:3128", True),
        ("http://user:p#w@proxy:3128", True),
        ("http://user:p?w@proxy:3128", True),
        ("user:pw@host", True),
        ("user@host:3128", True),
        ("//user:pw@host:3128", True),
        ("user:p/w@host:3128", True),
        ("git@evil:pw@host", True),
        ("proxy:3128", False),
        ("//proxy:3128/", False),
        ("http://[::1]:3128/a@b", False),
        ("http://host:3128/@scope/a", False),
        ("https://host/a:b@c", False),
        ("https://host?a:b@c", False),
        ("ssh://git@host:22/place", False),
        ("git+ssh://git@host/place@v1", False),
    ],
)
def test_an_address_with_a_user_is_a_secret_but_for_everybodys(value: str, secret: bool) -> None:
    made = environment_for({"http_proxy": value}, [], {})
    assert made.withheld == (("http_proxy",) if secret else ())
    named = environment_for({"http_proxy": value}, [("http_proxy", None)], {})
    assert named.variables == {"http_proxy": value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "user:pw@proxy:8080"),
        ("PIP_PROXY", "u:p@h:1"),
        ("PIP_EXTRA_INDEX_URL", "https://tok@index/simple"),
        ("PIP_EXTRA_INDEX_URL", "https://one/simple https://tok@two/simple"),
        ("GOPROXY", "https://tok@goproxy.example.org,direct"),
        ("npm_config_registry", "https://tok@registry/"),
        ("MAKEFLAGS", " -- DB_PASS=x"),
        ("NODE_OPTIONS", "--token abcdef"),
        ("JAVA_OPTS", "-Dauth=Basic_abc"),
        ("CA_PATH", ".mysecret"),
        ("FOO_DIR", "~abcSecret"),
    ],
)
def test_a_harmless_name_passes_no_credentials(name: str, value: str) -> None:
    assert not is_permitted(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LS_COLORS", "rs=0:di=01;34:ln=01;36:*.tar=01;31:*.key=00;33:*.pem=00;33:*~=00;90"),
        ("GCC_COLORS", "error=01;31:warning=01;35:note=01;36:path=01;35"),
        ("CFLAGS", "-O2 -g -march=native -ffile-prefix-map=/a=/b -DUSE_AUTH=1 -Wl,-rpath,/x"),
        ("LDFLAGS", "-L/opt/libsecret/lib -Wl,--as-needed"),
        ("GOFLAGS", "-mod=mod -ldflags=-s"),
        ("GOPROXY", "https://proxy.golang.org,direct"),
        ("GOPROXY", "https://one:8443/a|https://two:8443,direct"),
        ("GOPRIVATE", "github.com/me/*"),
        ("PKG_CONFIG_PATH", "/usr/lib/pkgconfig:/opt/libsecret:/home/me/key/lib"),
        ("PATH", "/home/me/.password-store:/usr/bin:/bin"),
        ("npm_config_registry", "https://registry.example.org:4873/@scope/"),
        ("PIP_INDEX_URL", "https://index.example.org:8443/simple"),
        ("NODE_OPTIONS", "--max-old-space-size=4096 --require ./hook.js"),
        ("JAVA_OPTS", "-Xmx2g -Dfile.encoding=UTF-8 -Djavax.net.ssl.keyStore=/etc/store"),
        ("CMAKE_ARGS", "-DWITH_AUTH=ON -DCMAKE_BUILD_TYPE=Release"),
        ("RUST_LOG", "info,app::auth=debug"),
        ("PYTEST_ADDOPTS", "-p no:cacheprovider -k auth"),
        ("MAKEFLAGS", "rR -j8 -- V=1 PREFIX=/usr PWD=/here"),
        ("EDITOR", "code --wait"),
        ("no_proxy", "localhost,127.0.0.1,::1,.example.org"),
    ],
)
def test_what_looks_a_little_like_a_secret_and_is_none_is_passed_on(name: str, value: str) -> None:
    assert is_permitted(name, value)


@pytest.mark.parametrize(
    "part",
    [
        *("://", "://a:b", "://git@", "a:", "/", "@", "-", "-D", "key", "key=0", "a=b ", "--key "),
        *("--key\t- ", "token", "-----BEGIN ", "aA", "1", ".", "sk-", "eyJ", "gl", ", ", "?sig", "_PASS1"),
    ],
)
def test_the_look_at_a_value_takes_time_linear_in_it(part: str) -> None:
    def work(size: int) -> Callable[[], object]:
        value = part * size
        return lambda: looks_secret("http_proxy", value)

    assert grows_linearly(work, 1000, largest=1 << 18)


def test_a_name_of_a_place_passes_nothing_but_paths() -> None:
    assert is_permitted("TOOL_HOME", "~/tool")
    assert is_permitted("TOOL_PATH", "~:.:..:./a:../b:/c:")
    assert not is_permitted("TOOL_HOME", "hunter2")
    assert not is_permitted("TOOL_HOME", ".hunter2")
    assert not is_permitted("TOOL_PATH", "/a:hunter2")


def test_what_is_not_passed_on_is_named_unless_asked_for() -> None:
    host = {"A_TOKEN": "1", "B_TOKEN": "2", "PLAIN": "3", "TERM": "4"}
    made = environment_for(host, [("B_TOKEN", None)], {})
    assert made.variables == {"B_TOKEN": "2", "TERM": "4"}
    assert made.withheld == ("A_TOKEN", "PLAIN")


def test_a_glob_names_all_that_match_and_must_name_one() -> None:
    host = {"APP_ONE": "1", "APP_TWO_KEY": "2", "OTHER": "3", "SANDBOXFS_APP": "4"}
    assert environment_for(host, [("*APP_*", None)], {}).variables == {"APP_ONE": "1", "APP_TWO_KEY": "2"}
    with pytest.raises(UsageError, match="no such variable"):
        environment_for(host, [("NONE_*", None)], {})


def test_what_the_user_configured_is_passed_on_and_may_be_missing() -> None:
    made = environment_for(
        {"DATABASE_URL": "1", "X": "2"}, [], {}, configured=["DATABASE_URL", "GONE", "GONE_*"]
    )
    assert made.variables == {"DATABASE_URL": "1"}
    assert made.withheld == ("X",)


def test_all_variables_are_passed_on_when_told_to_but_those_of_the_session() -> None:
    host = {"A_TOKEN": "1", "PLAIN": "2", "SSH_AUTH_SOCK": "/x", "DISPLAY": ":0", "SANDBOXFS_STATE_DIR": "/s"}
    made = environment_for(host, [], {}, whole=True)
    assert made.variables == {"A_TOKEN": "1", "PLAIN": "2"}
    assert made.withheld == ()


def test_make_gets_its_flags_without_a_job_server() -> None:
    host = {"MAKEFLAGS": " -j4 --jobserver-auth=fifo:/tmp/x -k", "MFLAGS": "-j4 --jobserver-fds=3,4"}
    assert environment_for(host, [], {}).variables == {"MAKEFLAGS": " -j4 -k", "MFLAGS": "-j4"}


def test_what_sandboxfs_sets_wins_over_everything() -> None:
    host = {"SANDBOXFS": "0", "SANDBOXFS_STATE_DIR": "/state"}
    made = environment_for(host, [("SANDBOXFS", "2")], {"SANDBOXFS": "1"})
    assert made.variables == {"SANDBOXFS": "1"}


@pytest.mark.parametrize(
    "name", ["SSH_AUTH_SOCK", "DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "TMPDIR"]
)
def test_sockets_and_places_of_the_session_are_not_passed_on_and_no_news(name: str) -> None:
    made = environment_for({name: "/x"}, [], {})
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
    made = environment_for(host, [("PATH", None)], {})
    assert made.variables == {"PATH": "/inside"}


def test_naming_a_variable_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="no such variable"):
        environment_for({}, [("MISSING", None)], {})
