"""Environment of a confined program: the variables passed in, and those that look like secrets.

Variables are passed by permission, never by default, except with `--confine none`: then all of them pass
(`runs/open_run`). Secrets have no common name, so a variable is passed on only when three things hold. Its
name is on the list of harmless ones: locale, terminal, editor, toolchains, certificates, proxies, markers of
continuous integration. The name does not look like that of a secret all the same, as `CARGO_REGISTRY_TOKEN`
does. The value does not look like a secret. The user's `--env`, `--env-all` and configuration stand above all
three.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

_NEEDED = frozenset({"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"})
# Names of harmless variables, by what they are for.
_HARMLESS = {
    "the session, as far as it is no more than words": ("HOSTNAME OLDPWD PWD"),
    "terminal and colour": (
        "CLICOLOR CLICOLOR_FORCE COLORFGBG COLORTERM COLUMNS FORCE_COLOR GCC_COLORS GREP_COLOR "
        "GREP_COLORS LINES LSCOLORS LS_COLORS NO_COLOR TERMINFO TERMINFO_DIRS TERM_PROGRAM "
        "TERM_PROGRAM_VERSION VTE_VERSION"
    ),
    "editor and pager": ("EDITOR GIT_EDITOR GIT_PAGER LESS LESSCHARSET LESSOPEN MANPAGER PAGER VISUAL"),
    "who commits, and where git looks": (
        "EMAIL GIT_AUTHOR_DATE GIT_AUTHOR_EMAIL GIT_AUTHOR_NAME GIT_CEILING_DIRECTORIES "
        "GIT_COMMITTER_DATE GIT_COMMITTER_EMAIL GIT_COMMITTER_NAME GIT_CONFIG_GLOBAL "
        "GIT_CONFIG_NOSYSTEM GIT_CONFIG_SYSTEM GIT_DIR GIT_INDEX_FILE GIT_OBJECT_DIRECTORY "
        "GIT_TERMINAL_PROMPT GIT_WORK_TREE"
    ),
    "compilers and linkers": (
        "AR AS CC CPATH CPP CXX C_INCLUDE_PATH CPLUS_INCLUDE_PATH F77 FC HOSTCC HOSTCXX LD "
        "LD_LIBRARY_PATH LIBRARY_PATH LIBS NM OBJCOPY OBJDUMP PKG_CONFIG RANLIB SOURCE_DATE_EPOCH STRIP"
    ),
    "make and its kind": (
        "CTEST_OUTPUT_ON_FAILURE CTEST_PARALLEL_LEVEL MAKE MAKEFILES MAKEFLAGS MAKELEVEL "
        "MESON_TESTTHREADS MFLAGS NINJA_STATUS"
    ),
    "Go; not by its first letters, which are those of GOOGLE_API_KEY": (
        "GO111MODULE GOAMD64 GOARCH GOARM GOBIN GOCACHE GODEBUG GOENV GOEXPERIMENT GOFLAGS GOGC "
        "GOINSECURE GOMAXPROCS GOMEMLIMIT GOMODCACHE GONOPROXY GONOSUMDB GOOS GOPATH GOPRIVATE GOPROXY "
        "GOROOT GOSUMDB GOTMPDIR GOTOOLCHAIN GOWORK"
    ),
    "Java and the options of its tools": (
        "ANT_OPTS CLASSPATH GRADLE_OPTS JAVA_OPTS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS MAVEN_ARGS "
        "MAVEN_OPTS SBT_OPTS"
    ),
    "other languages; of BUNDLE_* not all, where Bundler takes passwords under names of hosts": (
        "BUN_INSTALL BUNDLE_APP_CONFIG BUNDLE_BIN BUNDLE_DEPLOYMENT BUNDLE_FROZEN BUNDLE_GEMFILE "
        "BUNDLE_JOBS BUNDLE_PATH BUNDLE_WITH BUNDLE_WITHOUT DENO_DIR GEM_PATH LUA_CPATH LUA_PATH "
        "NUGET_PACKAGES PERL5LIB PERL5OPT PERL_MB_OPT PERL_MM_OPT PHPRC RUBYLIB RUBYOPT R_LIBS "
        "R_LIBS_USER npm_config_cache npm_config_loglevel npm_config_offline npm_config_prefer_offline "
        "npm_config_prefix npm_config_registry npm_config_update_notifier"
    ),
    "what an application runs as": (
        "APP_ENV DEBUG DJANGO_SETTINGS_MODULE ENVIRONMENT FLASK_APP FLASK_DEBUG FLASK_ENV LOG_LEVEL "
        "RACK_ENV RAILS_ENV TOKENIZERS_PARALLELISM VERBOSE"
    ),
    "where services are, without who may use them": (
        "ANTHROPIC_BASE_URL ANTHROPIC_MODEL AWS_DEFAULT_REGION AWS_PROFILE AWS_REGION OLLAMA_HOST "
        "OPENAI_API_BASE OPENAI_BASE_URL OPENAI_MODEL"
    ),
    "certificates": ("GIT_SSL_CAPATH NIX_SSL_CERT_FILE SSL_CERT_DIR SSL_CERT_FILE"),
    "search paths of desktops and packages that programs read too": (
        "HOMEBREW_CELLAR HOMEBREW_PREFIX HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES XDG_BIN_HOME "
        "XDG_CACHE_HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_DIRS XDG_DATA_HOME XDG_STATE_HOME"
    ),
    "processors and graphics cards": (
        "CUDA_VISIBLE_DEVICES NPROC OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS"
    ),
    "continuous integration": (
        "APPVEYOR BUILDKITE CI CIRCLECI CONTINUOUS_INTEGRATION DEBIAN_FRONTEND DRONE GITEA_ACTIONS "
        "GITHUB_ACTIONS GITLAB_CI TEAMCITY_VERSION TF_BUILD TRAVIS"
    ),
}
_NAMES = _NEEDED.union(*(names.split() for names in _HARMLESS.values()))
_PREFIXES = (
    *(
        "LC_",
        "PKG_CONFIG_",
        "CMAKE_",
        "CCACHE_",
        "SCCACHE_",
        "PYTHON",
        "PIP_",
        "UV_",
        "VIRTUAL_ENV",
        "CONDA_",
        "MAMBA_",
    ),
    *(
        "PYENV_",
        "PYTEST_",
        "TOX_",
        "COVERAGE_",
        "HYPOTHESIS_",
        "CARGO_",
        "RUST",
        "NODE_",
        "NVM_",
        "FNM_",
        "VOLTA_",
        "ASDF_",
    ),
    *("MISE_", "RBENV_", "DOTNET_"),
)
_SUFFIXES = ("FLAGS",)
# Names of places: passed on where the value is nothing but one or more paths.
_PLACES = (
    "_HOME",
    "_ROOT",
    "_DIR",
    "_PREFIX",
    "PATH",
    "_CA_BUNDLE",
    "_CA_CERTS",
    "_CA_CERTS_FILE",
    "_CAINFO",
)
_PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})

# Words that stand alone in the name of a variable, between underscores, or end it, perhaps with a number.
_SECRET_NAME = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|PASS|PWD|PW|CREDENTIALS?|CREDS|COOKIE|DSN|KEYS?|"
    r"APIKEY|PAT|AUTH|JWT|BEARER|SAS|PEM|WEBHOOK)(_|\d*$)"
    r"|(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIALS|KEY)\d*$",
    re.IGNORECASE,
)
_NO_SECRET_NAME = frozenset({"PWD", "OLDPWD"})

# Who may use an address: what is before its `@`, but for `git@`, which is everybody. Passwords are found also
# where they are written as they must not be, with `/`, `?` or `#`; a number before one of these is a port.
_USER = (
    r"(?:(?!git@[^/?#\s@]*+(?:[/?#\s]|$))[^/?#\s@]*+@"
    r"|[^/?#\s@:\[]*+:(?!//|\d+(?:[/?#\s,;|\"')\]}]|$))[^\s@]{0,256}@)"
)
# A proxy needs no scheme.
_USER_OF_A_PROXY = re.compile(rf"(?:^|[\s,;])/{{0,2}}{_USER}", re.IGNORECASE)

# An address with a user in it; a telling word that is given a value; tokens that services have made
# recognisable; private keys. Each is bounded or anchored, so that no value takes long.
_SECRET_VALUE = re.compile(
    rf"://{_USER}"
    # A colon before a slash is one between paths.
    r"|(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|authorization)[\w.-]{0,32}[\"']?\s?(?:=|:(?!/))\s?[^\s:=]"
    r"|[?&;](?:x-amz-|x-goog-)?(?:sig|signature|code)=[^\s&;]"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY|\bAGE-SECRET-KEY-1"
    r"|\b(?:sk|rk|pk)[-_](?:[a-z0-9]{2,12}[-_]){0,3}[0-9A-Za-z]{20}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|xapp-|npm_|pypi-|hf_|dop_v1_|shpat_|sq0[a-z]{3}-|lin_api_|ya29\.|"
    r"dckr_[op]at_|SG\.|hv[sbr]\.|gsk_|xai-|pplx-|nvapi-|r8_|lsv2_[ps][tk]_|gl(?:rt|ptt|dt|cbt|ft|soat|imt|agent)-|"
    r"sntry[su]_|sgp_|bkua_|sbp_|nfp_|rubygems_|ntn_|figd_|ATATT3|whsec_|GOCSPX-|tskey-[a-z]{2,8}-|pul-|dp\.[a-z]{2,5}\.|"
    r"PMAK-|pscale_[a-z]{2,8}_)[0-9A-Za-z_-]{16}"
    r"|\bdapi[0-9a-f]{32}|\.atlasv1\.[0-9A-Za-z_-]{16}"
    r"|\bA[KS]IA[0-9A-Z]{16}|\bAIza[0-9A-Za-z_-]{30}"
    r"|\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\."
    r"|hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/",
    re.IGNORECASE,
)

# What is given a value within another one, as by `-Ddb.pwd=x` and on make's command line; not `*.key=` in
# LS_COLORS. What only says whether, or how much is logged, is no secret.
_DEFINED = re.compile(
    r"(?<![\w.*-])([\w.-]++)=(?!(?:\d|on|off|yes|no|true|false|trace|debug|info|warn|error)(?![\w.-]))[^\s]",
    re.IGNORECASE,
)
# An option and its value in the next word.
_OPTION = re.compile(r"(?<!\S)--?([A-Za-z][\w.-]*+)\s{1,8}(?![\s-])[^\s]")
_LAST_WORD = re.compile(r"(?<![A-Z])[A-Z]++[a-z]*+\d*+$")

# Sockets, places and marks of the user's session: of no use to a program that cannot reach them, and no news.
_SESSION = frozenset(
    {
        "DEBUGINFOD_URLS",
        "DESKTOP_SESSION",
        "DESKTOP_STARTUP_ID",
        "DISPLAY",
        "DOCKER_HOST",
        "GPG_AGENT_INFO",
        "I3SOCK",
        "ICEAUTHORITY",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LESSCLOSE",
        "MAIL",
        "MANAGERPID",
        "NOTIFY_SOCKET",
        "PROMPT",
        "PROMPT_COMMAND",
        "PS1",
        "PS2",
        "SESSION_MANAGER",
        "SHLVL",
        "STY",
        "SWAYSOCK",
        "TMPDIR",
        "WAYLAND_DISPLAY",
        "WINDOWID",
        "WINDOWPATH",
        "XAUTHORITY",
        "XMODIFIERS",
        "_",
    }
)
_SESSION_PREFIXES = (
    *(
        "DBUS_",
        "GDK_",
        "GIO_",
        "GNOME_",
        "GTK_",
        "IBUS_",
        "KDE_",
        "MEMORY_PRESSURE_",
        "PULSE_",
        "QT_",
        "SSH_",
        "SUDO_",
    ),
    *("SYSTEMD_", "TMUX", "VSCODE_", "XDG_", "BASH_FUNC_"),
)
_OUR_OWN = "SANDBOXFS"
# Before the name of a variable: its value for `--env NAME`, where it must not be that of sandboxfs itself.
GIVEN = f"{_OUR_OWN}_ENV_"

_JOBSERVER = re.compile(r"(?:^|\s)--jobserver-(?:auth|fds)=\S+")


@dataclass(frozen=True)
class Environment:
    """The program's variables, and the names of those that are *withheld* and may be missed."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()


def looks_secret(name: str, value: str = "") -> bool:
    """Say whether a variable holds a secret, going by its *name* and by its *value*."""
    if _is_named_so(name) or _SECRET_VALUE.search(value) or _defines_secret(value):
        return True
    return name.lower().endswith("proxy") and _USER_OF_A_PROXY.search(value) is not None


def _is_named_so(name: str) -> bool:
    return name not in _NO_SECRET_NAME and _SECRET_NAME.search(name) is not None


def _defines_secret(value: str) -> bool:
    """Say whether one of the definitions or options in *value* has the name of a secret."""
    for pattern in (_DEFINED, _OPTION):
        for found in pattern.finditer(value):
            name = found[1].lstrip("-")
            # The letter after the last hyphen may be an option: `-Dpwd=x`, `-J-Dpwd=x`.
            letter_off = name.rpartition("-")[2][1:] if found[1].startswith("-") else ""
            last = _LAST_WORD.search(name)
            inner = name.replace(".", "_").replace("-", "_")
            if any(map(_is_named_so, (inner, letter_off, last[0] if last else ""))):
                return True
    return False


def is_permitted(name: str, value: str) -> bool:
    """Say whether a variable is passed on without being asked for."""
    return _is_known(name, value) and not looks_secret(name, value)


def _is_known(name: str, value: str) -> bool:
    if name in _NAMES or name.lower() in _PROXIES:
        return True
    if _is_of_session(name):
        return False
    if name.startswith(_PREFIXES) or name.endswith(_SUFFIXES):
        return True
    return name.endswith(_PLACES) and _are_paths(value)


def _is_of_session(name: str) -> bool:
    return name in _SESSION or name.startswith(_SESSION_PREFIXES)


def _are_paths(value: str) -> bool:
    return all(
        part in ("", "~", ".", "..") or part.startswith(("/", "~/", "./", "../")) for part in value.split(":")
    )


def parse_assignment(text: str) -> tuple[str, str | None]:
    """Read `NAME`, `GLOB` or `NAME=VALUE`, as `--env` takes it."""
    name, equals, value = text.partition("=")
    if not name or "\0" in text:
        raise UsageError(f"--env {quoted(text)}: expected NAME, a glob or NAME=VALUE")
    return name, value if equals else None


def named_values(host: Mapping[str, str], named: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the *named* variables, with the *host*'s value where they have none of their own.

    A name may be a glob, which names all variables of the host that match and must name one.
    """
    wanted: dict[str, str] = {}
    for name, value in named:
        found = _matching(host, name) if value is None else {name: value}
        if not found:
            raise UsageError(f"--env {quoted(name)}: there is no such variable")
        wanted |= found
    return wanted


def _matching(host: Mapping[str, str], name: str) -> dict[str, str]:
    value = host.get(f"{GIVEN}{name}", host.get(name))
    if value is not None:
        return {name: value}
    if not set(name) & set("*?["):
        return {}
    return {one: host[one] for one in host if not _is_ours(one) and fnmatchcase(one, name)}


def _is_ours(name: str) -> bool:
    return name == _OUR_OWN or name.startswith(f"{_OUR_OWN}_")


def environment_for(
    host: Mapping[str, str],
    named: Iterable[tuple[str, str | None]],
    added: Mapping[str, str],
    *,
    clear: bool = False,
    whole: bool = False,
    configured: Iterable[str] = (),
) -> Environment:
    """Make a program's environment out of the *host*'s.

    *named* variables are passed on, or set where they have a value; one that the host lacks is an error. What
    the user has *configured* are globs that may name nothing. *added* are variables that sandboxfs sets;
    nothing overrides them. Of the rest, *clear* keeps what every program needs, and *whole* keeps all but the
    sockets and places of the session.
    """
    wanted = named_values(host, named)
    for name in configured:
        wanted = _matching(host, name) | wanted
    withheld = []
    kept: dict[str, str] = {}
    for name, value in host.items():
        if _is_ours(name) or name in wanted:
            continue
        if clear and name not in _NEEDED and not name.startswith("LC_"):
            continue
        passed = _without_jobserver(name, value)
        if is_permitted(name, passed) or (whole and not _is_of_session(name)):
            kept[name] = passed
        elif not _is_of_session(name):
            withheld.append(name)
    return Environment(kept | wanted | dict(added), tuple(sorted(withheld)))


def _without_jobserver(name: str, value: str) -> str:
    """Leave out of make's flags the descriptors of a job server, which the program does not have."""
    return _JOBSERVER.sub("", value) if name in ("MAKEFLAGS", "MFLAGS") else value
