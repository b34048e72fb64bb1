"""Does the seccomp filter refuse what it should, and nothing else? The filter is run here, step by step."""

import errno
import struct

import pytest

from sandboxfs.confine.seccomp import build_filter, known

ALLOWED = "allowed"
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
NEW_USER_NAMESPACE, SIGCHLD = 0x10000000, 17
TIOCSTI, TCGETS = 0x5412, 0x5401
UNIX, INTERNET, INTERNET_6, NETLINK = 1, 2, 10, 16
# ax25 packet alg vsock xdp
UNUSUAL = (3, 17, 38, 40, 44)


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> str:
    """What the kernel would do with a call, by the rules of the classic Berkeley packet filter."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *[*arguments, *[0] * 6][:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, value)[0]
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return ALLOWED if value == 0x7FFF0000 else errno.errorcode[value & 0xFFFF]
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


CALLS = {
    # architecture: machine, ioctl, clone, unshare, socket, read
    X86_64: ("x86_64", 16, 56, 272, 41, 0),
    I386: ("x86_64", 54, 120, 310, 359, 3),
    AARCH64: ("aarch64", 29, 220, 97, 198, 63),
    ARM: ("aarch64", 54, 120, 337, 281, 3),
}


@pytest.mark.parametrize("architecture", CALLS)
def test_typing_into_a_terminal_is_refused_and_using_it_is_not(architecture: int) -> None:
    machine, ioctl, *_ = CALLS[architecture]
    program = build_filter(machine)
    assert verdict(program, architecture, ioctl, 0, TIOCSTI) == "EPERM"
    assert verdict(program, architecture, ioctl, 0, TIOCSTI | 1 << 32) == "EPERM"
    assert verdict(program, architecture, ioctl, 0, TCGETS) == ALLOWED


@pytest.mark.parametrize("architecture", CALLS)
def test_new_user_namespaces_are_refused_and_processes_are_not(architecture: int) -> None:
    machine, _, clone, unshare, *_ = CALLS[architecture]
    program = build_filter(machine)
    for call in (clone, unshare):
        assert verdict(program, architecture, call, NEW_USER_NAMESPACE | SIGCHLD) == "EPERM"
        assert verdict(program, architecture, call, SIGCHLD) == ALLOWED
    assert verdict(program, architecture, 435) == "ENOSYS"


@pytest.mark.parametrize("architecture", CALLS)
@pytest.mark.parametrize(
    ("local", "internet", "refused"),
    [
        (True, True, set()),
        (False, True, {UNIX}),
        (True, False, {INTERNET, INTERNET_6}),
        (False, False, {UNIX, INTERNET, INTERNET_6}),
    ],
)
def test_sockets_are_refused_as_asked(
    architecture: int, local: bool, internet: bool, refused: set[int]
) -> None:
    machine, *_, socket, read = CALLS[architecture]
    program = build_filter(machine, local=local, internet=internet)
    for family in (UNIX, INTERNET, INTERNET_6, NETLINK):
        expected = "EACCES" if family in refused else ALLOWED
        assert verdict(program, architecture, socket, family) == expected
    for family in UNUSUAL:
        assert verdict(program, architecture, socket, family) == "EAFNOSUPPORT"
    assert verdict(program, architecture, read) == ALLOWED


def test_a_socket_whose_family_cannot_be_seen_is_refused() -> None:
    socketcall, make, make_a_pair = 102, 1, 8
    program = build_filter("x86_64")
    assert verdict(program, I386, socketcall, make) == "EPERM"
    assert verdict(program, I386, socketcall, make_a_pair) == ALLOWED


OTHERS = {
    # architecture: prlimit64 and what else begins with a process; setpriority; ioprio_set; shmget and others
    X86_64: ((302, 203, 144, 142, 314), 141, 251, (29, 240)),
    I386: ((340, 241, 156, 154, 351), 97, 289, (117, 395, 277)),
    AARCH64: ((261, 122, 119, 118, 274), 140, 30, (194, 180)),
    ARM: ((369, 241, 156, 154, 380), 97, 314, (307, 274)),
}
SOMEBODY = 4711


@pytest.mark.parametrize("architecture", OTHERS)
def test_without_namespaces_other_processes_and_what_they_share_are_refused(architecture: int) -> None:
    on_process, setpriority, ioprio_set, shared = OTHERS[architecture]
    machine = CALLS[architecture][0]
    program, alone = build_filter(machine, alone=False), build_filter(machine)
    process, user, io_process = 0, 2, 1
    refused: list[tuple[int, ...]] = [(on, SOMEBODY) for on in on_process]
    refused += [(setpriority, process, SOMEBODY), (setpriority, user, 0)]
    refused += [(ioprio_set, io_process, SOMEBODY), (ioprio_set, io_process + 2, 0)]
    refused += [(one,) for one in shared]
    for call in refused:
        assert verdict(program, architecture, *call) == "EPERM", call
        assert verdict(alone, architecture, *call) == ALLOWED, call
    for call in [(on, 0) for on in on_process] + [(setpriority, process, 0), (ioprio_set, io_process, 0)]:
        assert verdict(program, architecture, *call) == ALLOWED, call


def test_the_second_way_to_call_the_kernel_of_x86_64_is_closed() -> None:
    assert verdict(build_filter("x86_64"), X86_64, 0x40000000 | 16, 0, TCGETS) == "ENOSYS"


def test_an_unknown_architecture_is_refused_everything() -> None:
    assert verdict(build_filter("x86_64"), AARCH64, 63) == "ENOSYS"
    assert known("x86_64")
    assert known("aarch64")
    assert not known("pdp11")
