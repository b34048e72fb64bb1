"""Does the seccomp filter refuse what it should, and nothing else? The filter is run here, step by step."""

import errno
import struct

import pytest

from sandboxfs.confine.seccomp import build_filter, known

ALLOWED, HANDED_OVER = "allowed", "handed over"
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
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                other = {0x7FFF0000: ALLOWED, 0x7FC00000: HANDED_OVER}
                return other.get(value) or errno.errorcode[value & 0xFFFF]
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
        (True, False, {INTERNET, INTERNET_6, NETLINK}),
        (False, False, {UNIX, INTERNET, INTERNET_6, NETLINK}),
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


@pytest.mark.parametrize("architecture", CALLS)
def test_netlink_is_for_routes_alone(architecture: int) -> None:
    machine, *_, socket, _ = CALLS[architecture]
    program, raw, route = build_filter(machine, local=False), 3, 0
    assert verdict(program, architecture, socket, NETLINK, raw, route) == ALLOWED
    # sock_diag xfrm audit netfilter uevent generic crypto
    for protocol in (4, 6, 9, 12, 15, 16, 21):
        assert verdict(program, architecture, socket, NETLINK, raw, protocol) == "EPROTONOSUPPORT"


PAIRS = {X86_64: 53, I386: 360, AARCH64: 199, ARM: 288}
STREAM, DATAGRAM, RAW, SEQPACKET, CLOSED_ON_EXEC = 1, 2, 3, 5, 0o2000000


@pytest.mark.parametrize("architecture", PAIRS)
def test_pairs_are_of_unix_sockets_and_without_others_of_those_that_stay_connected(architecture: int) -> None:
    machine, pair = CALLS[architecture][0], PAIRS[architecture]
    program, apart = build_filter(machine), build_filter(machine, local=False)
    for kind in (STREAM, DATAGRAM, RAW, SEQPACKET):
        kept = kind in (STREAM, SEQPACKET)
        assert verdict(program, architecture, pair, UNIX, kind) == ALLOWED
        assert verdict(apart, architecture, pair, UNIX, kind | CLOSED_ON_EXEC) == (
            ALLOWED if kept else "EACCES"
        )
    for family in (*UNUSUAL, INTERNET, 30):
        assert verdict(program, architecture, pair, family, STREAM) == "EAFNOSUPPORT"


def test_a_socket_whose_family_cannot_be_seen_is_refused() -> None:
    socketcall, make, make_a_pair = 102, 1, 8
    program = build_filter("x86_64")
    assert verdict(program, I386, socketcall, make) == "EPERM"
    assert verdict(program, I386, socketcall, make_a_pair) == ALLOWED
    assert verdict(build_filter("x86_64", local=False), I386, socketcall, make_a_pair) == "EPERM"


BY_PATH = {
    # architecture: setxattr lsetxattr removexattr lremovexattr; fsetxattr fremovexattr
    X86_64: ((188, 189, 197, 198), (190, 199)),
    I386: ((226, 227, 235, 236), (228, 237)),
    AARCH64: ((5, 6, 14, 15), (7, 16)),
    ARM: ((226, 227, 235, 236), (228, 237)),
}


@pytest.mark.parametrize("architecture", BY_PATH)
def test_without_namespaces_attributes_and_flags_are_refused_by_path_and_not_by_descriptor(
    architecture: int,
) -> None:
    by_path, by_descriptor = BY_PATH[architecture]
    machine = CALLS[architecture][0]
    program, alone = build_filter(machine, alone=False), build_filter(machine)
    # and setxattrat removexattrat file_setattr
    for call in (*by_path, 463, 466, 469):
        assert verdict(program, architecture, call) == "ENOTSUP", call
        assert verdict(alone, architecture, call) == ALLOWED, call
    # and those that only look: getxattrat listxattrat file_getattr
    for call in (*by_descriptor, 464, 465, 468):
        assert verdict(program, architecture, call) == ALLOWED, call


MODES = {
    # architecture: calls and where each has its mode; calls that open and where each has its flags
    X86_64: ({90: 1, 91: 1, 268: 2, 85: 1, 133: 1, 259: 2}, {2: 1, 257: 2}),
    I386: ({15: 1, 94: 1, 306: 2, 8: 1, 14: 1, 297: 2}, {5: 1, 295: 2}),
    AARCH64: ({52: 1, 53: 2, 33: 2}, {56: 2}),
    ARM: ({15: 1, 94: 1, 333: 2, 8: 1, 14: 1, 324: 2}, {5: 1, 322: 2}),
}
CREATE, UNNAMED = 0o100, 0o20000000


@pytest.mark.parametrize("architecture", MODES)
def test_without_namespaces_set_id_bits_are_refused_in_every_mode(architecture: int) -> None:
    modes, opens = MODES[architecture]
    machine = CALLS[architecture][0]
    program, alone = build_filter(machine, alone=False), build_filter(machine)
    calls = [(call, [0] * at) for call, at in (modes | {452: 2}).items()]
    calls += [(call, [0] * at + [flag]) for call, at in opens.items() for flag in (CREATE, UNNAMED)]
    for call, before in calls:
        for mode in (0o4755, 0o2755, 0o6000):
            assert verdict(program, architecture, call, *before, mode) == "EPERM", call
            assert verdict(alone, architecture, call, *before, mode) == ALLOWED, call
        assert verdict(program, architecture, call, *before, 0o101777) == ALLOWED, call
    for call, at in opens.items():
        # Without a flag that makes a file, the mode may be anything.
        assert verdict(program, architecture, call, *[0] * at, 0, 0o4755) == ALLOWED, call
    # openat2, which has its mode in memory
    assert verdict(program, architecture, 437) == "ENOSYS"


CHANGES = {
    # architecture: chown lchown fchown fchownat utime utimes futimesat utimensat, as far as it has them
    X86_64: (92, 94, 93, 260, 132, 235, 261, 280),
    I386: (212, 198, 207, 182, 16, 95, 298, 30, 271, 299, 320, 412),
    AARCH64: (55, 54, 88),
    ARM: (212, 198, 207, 182, 16, 95, 325, 269, 326, 348, 412),
}
# creat mknod mknodat
MAKING = {X86_64: {85, 133, 259}, I386: {8, 14, 297}, AARCH64: {33}, ARM: {8, 14, 324}}


@pytest.mark.parametrize("architecture", CHANGES)
def test_changes_of_attributes_are_handed_over_where_somebody_attends(architecture: int) -> None:
    machine = CALLS[architecture][0]
    changes = (*CHANGES[architecture], *MODES[architecture][0], *sum(BY_PATH[architecture], ()))
    # and fchmodat2 setxattrat removexattrat
    changes = (*changes, 452, 463, 466)
    program, alone = build_filter(machine, alone=False, attended=True), build_filter(machine)
    making = MAKING[architecture]
    for call in set(changes) - making:
        assert verdict(program, architecture, call, 0, 0) == HANDED_OVER, call
        assert verdict(alone, architecture, call, 0, 0) == ALLOWED, call
    # What makes something is for Landlock, set-id bits apart.
    for call, at in MODES[architecture][0].items():
        if call in making:
            assert verdict(program, architecture, call, *[0] * at, 0o4755) == "EPERM", call


@pytest.mark.parametrize("architecture", CALLS)
def test_without_namespaces_flags_of_files_are_refused_by_descriptor_too(architecture: int) -> None:
    machine, ioctl, *_ = CALLS[architecture]
    # _IOC(write or read, type, number, size) of linux/fs.h, ext4.h, msdos_fs.h, fsverity.h and fscrypt.h
    setting = {"FS_IOC_SETFLAGS": (1, "f", 2, 8), "FS_IOC32_SETFLAGS": (1, "f", 2, 4)}
    setting |= {"FS_IOC_SETVERSION": (1, "v", 2, 8), "FS_IOC32_SETVERSION": (1, "v", 2, 4)}
    setting |= {"EXT4_IOC_SETVERSION_OLD": (1, "f", 4, 8), "EXT4_IOC32_SETVERSION_OLD": (1, "f", 4, 4)}
    setting |= {"FS_IOC_FSSETXATTR": (1, "X", 32, 28), "FAT_IOCTL_SET_ATTRIBUTES": (1, "r", 0x11, 4)}
    setting |= {"FS_IOC_ENABLE_VERITY": (1, "f", 133, 128), "FS_IOC_SET_ENCRYPTION_POLICY": (2, "f", 19, 12)}
    for way, letter, number, size in setting.values():
        request = way << 30 | size << 16 | ord(letter) << 8 | number
        assert verdict(build_filter(machine, alone=False), architecture, ioctl, 0, request) == "ENOTTY"
        assert verdict(build_filter(machine), architecture, ioctl, 0, request) == ALLOWED


@pytest.mark.parametrize("architecture", CALLS)
def test_calls_that_are_newer_than_the_filter_do_not_exist(architecture: int) -> None:
    machine = CALLS[architecture][0]
    for program in (build_filter(machine), build_filter(machine, local=False, internet=False, alone=False)):
        assert verdict(program, architecture, 468) == ALLOWED
        for call in (470, 471, 512, 547, 0xEFFFF, 0xF0100, 0xFFFFFFFF):
            assert verdict(program, architecture, call) == "ENOSYS", call
        # cacheflush and set_tls, of arm alone
        for call in (0xF0002, 0xF0005):
            assert verdict(program, architecture, call) == (ALLOWED if architecture == ARM else "ENOSYS")


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
