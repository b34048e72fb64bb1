# Sourced by the other scripts: makes sure that the machine and .venv have what sandboxfs needs.
#
#   setup run     what running sandboxfs needs
#   setup dev     what linting, type checking and the tests without a mount need
#   setup test    what all tests need
#
# Changes nothing but the machine's packages (through apt-get) and the project's own .venv. A finished
# .venv carries a stamp; while the stamp fits, nothing is installed and no network is needed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $1"; shift; for line; do say "  $line"; done; exit 1; }

setup() {
    local want=$1
    [ -w "$root" ] || die "$root is not writable by $(id -un)" \
        "the virtual environment goes to $venv: run as the owner of the checkout, or copy it somewhere of yours"
    if [ -e "$venv" ] && [ ! -w "$venv" ]; then
        die "$venv belongs to $(stat -c %U "$venv"), not to $(id -un)" "remove it with: sudo rm -rf '$venv'"
    fi
    if [ "$(stat -c %u "$root")" != "$(id -u)" ]; then
        say "note: this checkout belongs to $(stat -c %U "$root"); .venv will belong to $(id -un)"
    fi

    missing_packages=() missing_reasons=()
    if [ "$want" != dev ]; then
        needs_command fusermount3 fuse3 "mounts and unmounts FUSE filesystems"
        needs_command bwrap bubblewrap "runs programs in a namespace of their own"
        needs_command git git "is the tool most used in a sandbox"
    fi
    if [ "$want" = test ]; then
        needs_command make make "builds a C project in the tests"
        needs_command gcc gcc "compiles in the tests"
        needs_command rsync rsync "copies trees in the tests"
        needs_command npm npm "installs packages in the tests"
        needs_command tmux tmux "is the terminal of the tests"
        needs_command vi vim-tiny "is a full-screen program in the tests"
        needs_command less less "is another"
        needs_command patch patch "applies patches in the tests"
    fi
    install_missing
    find_python
    # Tests need more of the machine than the other checks, and the same of .venv.
    [ "$want" = run ] || want=dev

    # The lock is on the checkout itself, so that it leaves no file. Every run holds it shared until it
    # ends, so that nobody rebuilds an environment that is in use.
    exec 9<"$root"
    flock -s 9
    if ! stamp_fits "$want"; then
        flock -xn 9 || { say "another run is using .venv; waiting for it to end"; flock -x 9; }
        stamp_fits "$want" || build_venv "$want"
        flock -s 9
    fi
    export MYPY_CACHE_DIR=$venv/cache/mypy RUFF_CACHE_DIR=$venv/cache/ruff
    export HYPOTHESIS_STORAGE_DIRECTORY=$venv/cache/hypothesis
    # Compiled once and kept out of the tree: every command and daemon starts faster.
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=$venv/cache/bytecode
    PATH=$venv/bin:$PATH
}

needs_command() { command -v "$1" >/dev/null || needs_package "$2" "$3"; }

needs_package() {
    missing_packages+=("$1")
    missing_reasons+=("$1: $2")
}

# Installs what needs_package collected, after saying what and why.
install_missing() {
    [ ${#missing_packages[@]} -gt 0 ] || return 0
    local as_root=() reason
    local install=(apt-get install -y --no-install-recommends "${missing_packages[@]}")
    say "sandboxfs needs these packages, which this machine lacks:"
    for reason in "${missing_reasons[@]}"; do say "  $reason"; done
    command -v apt-get >/dev/null || die "there is no apt-get here" \
        "install the equivalents of: ${missing_packages[*]}"
    if [ "$(id -u)" != 0 ]; then
        # Without a terminal sudo could not ask for a password and would only confuse.
        if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            as_root=(sudo)
        else
            die "cannot install them as $(id -un); let an administrator run" "${install[*]}"
        fi
    fi
    say "installing: ${missing_packages[*]}"
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    # A dead third-party source must not stop an installation that does not need it.
    "${as_root[@]}" apt-get update -qq </dev/null >&2 || say "note: apt-get update failed; trying all the same"
    "${as_root[@]}" "${install[@]}" -qq -o DPkg::Lock::Timeout=300 </dev/null >&2 ||
        die "installing failed; try by hand" "${install[*]}"
    missing_packages=() missing_reasons=()
    hash -r
}

# Sets $python to an interpreter that is new enough, and $python_id to what tells it from others.
find_python() {
    local candidate
    if ! command -v python3 >/dev/null; then
        needs_package python3 "sandboxfs is written in it"
        install_missing
    fi
    # The machine's own first: one in somebody's home directory is out of reach for other users.
    for candidate in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        command -v "$candidate" >/dev/null || continue
        python_id=$("$candidate" -c '
import sys
if sys.version_info < (3, 11): sys.exit(1)
print(sys.version.split()[0], sys.implementation.cache_tag, sys.base_prefix)' 2>/dev/null) || continue
        python=$candidate
        return
    done
    die "Python 3.11 or newer is needed; python3 here is $(python3 -V 2>&1 | cut -d' ' -f2)" \
        "install one, for example: apt-get install python3.11 python3.11-venv python3.11-dev"
}

# A stamp names everything the environment was made from. A checkout that moved has another path, and
# its .venv would point at the old one.
stamp() { printf '%s\n%s\n%s\n' "$python_id" "$root" "$(sha256sum <"$root/pyproject.toml")"; }

stamp_fits() {
    local kind
    for kind in "$1" dev; do
        [ -f "$venv/stamp.$kind" ] && [ "$(cat "$venv/stamp.$kind")" = "$(stamp)" ] && return
    done
    return 1
}

build_venv() {
    local version=${python_id%% *} include ensurepip extra=
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    "$python" -c 'import ensurepip, venv' 2>/dev/null && ensurepip=yes
    local debian_python=python3
    case $python in */python3 | python3) ;; *) debian_python=$python ;; esac
    [ "${ensurepip:-}" ] || needs_package "$debian_python-venv" "makes virtual environments"
    needs_command gcc gcc "compiles pyfuse3, the binding to FUSE"
    [ -e /usr/include/stdlib.h ] || needs_package libc6-dev "has the headers of the C library, for pyfuse3"
    needs_command pkg-config pkg-config "finds libfuse3 for pyfuse3"
    pkg-config --exists fuse3 2>/dev/null || needs_package libfuse3-dev "is the library that pyfuse3 binds"
    [ -e "$include/Python.h" ] || needs_package "$debian_python-dev" "has the headers of Python, for pyfuse3"
    install_missing

    [ "$1" = run ] || extra="[$1]"
    say "preparing .venv with Python $version: sandboxfs and what it imports${extra:+, and the tools that check it}"
    if ! [ -x "$venv/bin/python" ] || [ "$(head -n 2 "$venv/made-with" 2>/dev/null)" != "$(stamp | head -n 2)" ]; then
        "$python" -m venv --clear "$venv"
        stamp >"$venv/made-with"
    fi
    rm -f "$venv"/stamp.*
    (cd "$root" && "$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
        --no-input -e ".$extra" </dev/null >&2) || die "pip could not fill .venv; its words are above"
    stamp >"$venv/stamp.$1.new" && mv "$venv/stamp.$1.new" "$venv/stamp.$1"
}

# Says what keeps this user from mounting, if anything does, and how to mend it.
check_fuse() {
    if [ ! -e /dev/fuse ]; then
        say "there is no /dev/fuse; mend it with: modprobe fuse   (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
        return 1
    elif ! { : <>/dev/fuse; } 2>/dev/null; then
        say "$(id -un) may not open /dev/fuse; mend it with: sudo chmod 666 /dev/fuse"
        return 1
    fi
}
