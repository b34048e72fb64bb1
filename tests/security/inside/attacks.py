"""What a hostile program tries from inside a run. Prints, as JSON, what came of each attempt.

Runs inside, with nothing but the standard library. An attempt that the kernel refuses raises; one that finds
nothing to attack says so by raising `Nothing`; one that returns believes that it got out, and says how. What
it changed or not is judged from outside as well: every attempt that writes leaves a file named after itself.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

ATTACKS: dict[str, Callable[[], object]] = {}
HOST: dict[str, str] = {}
INHERITED: list[str] = []
libc = ctypes.CDLL(None, use_errno=True)
X86_64 = os.uname().machine == "x86_64"
AT_FDCWD = -100


class Nothing(Exception):
    """There was nothing to attack."""


def attack(function: Callable[[], object]) -> Callable[[], object]:
    ATTACKS[function.__name__] = function
    return function


def check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def plant(directory: str, name: str) -> str:
    """Leave a file in *directory*, which is thought to be the real workspace."""
    path = os.path.join(directory, f"escaped-{name}")
    with open(path, "w") as file:
        file.write("out")
    return path


def first(attempts: Sequence[Callable[[], object]]) -> object:
    """The first attempt that does not fail; else what the last one raised."""
    failure: Exception = Nothing()
    for attempt in attempts:
        try:
            return attempt()
        except (OSError, Nothing) as error:
            failure = error
    raise failure


def call(number: int, *arguments: object) -> int:
    """A system call, by its number; whole numbers are passed on as long ones."""
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return check(libc.syscall(ctypes.c_long(number), *passed))


def others() -> list[str]:
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]


# Around the view


@attack
def write_the_workspace_by_its_own_path() -> object:
    return plant(HOST["workspace"], "own-path")


@attack
def write_a_place_beside_the_workspace() -> object:
    return plant(HOST["outside"], "beside")


@attack
def read_a_file_beside_the_workspace() -> object:
    with open(HOST["outside"] + "/secret") as file:
        return file.read()


@attack
def truncate_a_file_beside_the_workspace() -> object:
    os.truncate(HOST["outside"] + "/secret", 0)
    return "done"


@attack
def reach_the_host_through_proc_root() -> object:
    return first([partial(plant, f"/proc/{pid}/root{HOST['outside']}", "proc-root") for pid in others()])


@attack
def reach_the_host_through_proc_cwd() -> object:
    def look(pid: str) -> object:
        os.stat(f"/proc/{pid}/cwd/..")
        return plant(f"/proc/{pid}/cwd/{os.path.relpath(HOST['outside'], '/')}", "proc-cwd")

    return first([partial(look, pid) for pid in others()])


@attack
def reach_the_host_through_proc_fd() -> object:
    def look(pid: str) -> object:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if target.startswith((HOST["outside"], HOST["state"], HOST["real"])):
                return target
        raise Nothing

    return first([partial(look, pid) for pid in others()])


@attack
def use_an_inherited_descriptor() -> object:
    if not INHERITED:
        raise Nothing
    return INHERITED


@attack
def write_standard_input_back() -> object:
    descriptor = os.open("/proc/self/fd/0", os.O_RDWR)
    os.write(descriptor, b"overwritten")
    os.stat("/proc/self/fd/0")
    if not os.readlink("/proc/self/fd/0").startswith("/"):
        raise Nothing
    return os.readlink("/proc/self/fd/0")


@attack
def follow_a_symlink_made_inside() -> object:
    os.symlink(HOST["outside"], "way-out")
    return plant("way-out", "symlink")


@attack
def follow_a_symlink_of_the_workspace() -> object:
    return plant("link-outside", "old-symlink")


@attack
def make_a_hard_link_to_the_host() -> object:
    os.link(HOST["outside"] + "/secret", "hard")
    with open("hard", "a") as file:
        file.write("escaped")
    return "linked"


@attack
def rename_a_file_of_the_host_into_the_view() -> object:
    os.rename(HOST["outside"] + "/secret", "taken")
    return "done"


@attack
def open_a_file_by_its_handle() -> object:
    # struct file_handle with the inode number of the root of most filesystems.
    handle = (ctypes.c_uint * 8)(8, 1, 2, 0)
    mount = os.open("/usr", os.O_RDONLY)
    return check(libc.open_by_handle_at(mount, handle, os.O_RDONLY))


# Mounts and namespaces


@attack
def make_a_user_namespace() -> object:
    check(libc.unshare(0x10000000 | 0x00020000))
    return "made one"


@attack
def make_a_user_namespace_through_a_tool() -> object:
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "true"], check=True, capture_output=True
    )
    return "made one"


@attack
def bind_mount_over_the_view() -> object:
    return check(libc.mount(b"/etc", os.fsencode(os.getcwd()), None, 4096, None))


@attack
def remount_the_system_writable() -> object:
    return check(libc.mount(None, b"/usr", None, 32 | 4096, None))


@attack
def unmount_the_view() -> object:
    return check(libc.umount2(os.fsencode(HOST["workspace"]), 2))


@attack
def mount_a_filesystem() -> object:
    return check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))


@attack
def open_the_fuse_device() -> object:
    return os.open("/dev/fuse", os.O_RDWR)


@attack
def make_a_device() -> object:
    os.mknod("disk", 0o600 | 0o060000, os.makedev(259, 0))
    return os.open("disk", os.O_RDONLY)


@attack
def enter_the_namespaces_of_another_process() -> object:
    def enter(pid: str) -> int:
        return check(libc.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), 0))

    return first([partial(enter, pid) for pid in others()])


@attack
def change_the_root_directory() -> object:
    os.chroot(os.getcwd())
    return "done"


# Other processes


@attack
def signal_the_daemon() -> object:
    os.kill(int(HOST["daemon"]), 0)
    return "done"


@attack
def signal_the_command() -> object:
    os.kill(int(HOST["command"]), 0)
    return "done"


@attack
def signal_everybody() -> object:
    return first([partial(os.kill, int(pid), 0) for pid in others() if int(pid) not in (1, os.getppid())])


@attack
def trace_the_daemon() -> object:
    return check(libc.ptrace(16, int(HOST["daemon"]), None, None))


@attack
def trace_process_1() -> object:
    return check(libc.ptrace(16, 1, None, None))


@attack
def read_the_memory_of_the_daemon() -> object:
    return os.open(f"/proc/{HOST['daemon']}/mem", os.O_RDONLY)


@attack
def read_the_environment_of_the_daemon() -> object:
    with open(f"/proc/{HOST['daemon']}/environ") as file:
        return file.read()


@attack
def look_into_the_daemon_without_a_file() -> object:
    """By process_vm_readv, kcmp, pidfd_getfd and process_madvise."""
    daemon = int(HOST["daemon"])
    readv, kcmp = (310, 312) if X86_64 else (270, 272)
    buffer = ctypes.create_string_buffer(16)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 16)

    def through_a_descriptor(call: int, *arguments: object) -> int:
        return check(libc.syscall(call, os.pidfd_open(daemon), *arguments))

    return first(
        [
            partial(call, readv, daemon, vector, 1, vector, 1, 0),
            partial(call, kcmp, daemon, daemon, 2, 0, 0),
            partial(through_a_descriptor, 438, 0, 0),
            partial(through_a_descriptor, 440, vector, 1, 20, 0),
        ]
    )


def limit(pid: int) -> object:
    """Set a limit of another process, to what it is."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE))


@attack
def change_the_limits_of_the_daemon() -> object:
    return limit(int(HOST["daemon"]))


@attack
def change_the_limits_of_the_command() -> object:
    return limit(int(HOST["command"]))


@attack
def change_the_limits_of_any_process_outside() -> object:
    if HOST["confinement"] == "bubblewrap":
        # Those that are there are its own.
        raise Nothing
    # This one is a child of the program.
    return first([partial(limit, int(pid)) for pid in others() if int(pid) != os.getppid()])


@attack
def change_the_priority_of_the_daemon() -> object:
    daemon = int(HOST["daemon"])
    os.setpriority(os.PRIO_PROCESS, daemon, os.getpriority(os.PRIO_PROCESS, daemon))
    return "done"


@attack
def change_the_priority_of_all_processes_of_the_user() -> object:
    if HOST["confinement"] == "bubblewrap":
        raise Nothing
    # Without privileges none can be raised; those that have it keep it.
    os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_USER, 0))
    return "done"


@attack
def change_the_scheduling_of_the_daemon() -> object:
    daemon = int(HOST["daemon"])
    setattr_, ioprio_set = (314, 251) if X86_64 else (274, 30)
    # 48 bytes that say: as everything is.
    attributes = (ctypes.c_uint * 12)(48)
    return first(
        [
            partial(os.sched_setaffinity, daemon, os.sched_getaffinity(0)),
            partial(os.sched_setscheduler, daemon, os.SCHED_OTHER, os.sched_param(0)),
            partial(os.sched_setparam, daemon, os.sched_param(0)),
            partial(call, setattr_, daemon, attributes, 0),
            partial(call, ioprio_set, 1, daemon, 2 << 13 | 4),
        ]
    )


@attack
def see_the_processes_of_the_host() -> object:
    with open(f"/proc/{HOST['test']}/cmdline") as file:
        return file.read()


# What processes share without a file


@attack
def write_shared_memory_of_the_host() -> object:
    shmget, shmat = (29, 30) if X86_64 else (194, 196)
    segment = call(shmget, int(HOST["segment"]), 0, 0)
    libc.syscall.restype = ctypes.c_void_p
    address = libc.syscall(shmat, segment, None, 0)
    ctypes.memmove(address, b"escaped", 7)
    return "wrote it"


@attack
def send_a_message_to_a_queue_of_the_host() -> object:
    msgget, msgsnd = (68, 69) if X86_64 else (186, 189)
    return call(msgsnd, call(msgget, int(HOST["segment"]), 0), b"\1\0\0\0\0\0\0\0escaped", 7, 0o4000)


@attack
def change_a_semaphore_of_the_host() -> object:
    semget, semctl = (64, 66) if X86_64 else (190, 191)
    return call(semctl, call(semget, int(HOST["segment"]), 0, 0), 0, 16, 1)


@attack
def open_a_message_queue_of_the_host() -> object:
    return call(240 if X86_64 else 180, os.fsencode(HOST["queue"]), os.O_RDWR, 0, None)


# The control plane and the state


def connect(address: str | bytes) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        return "connected"


@attack
def connect_to_the_control_socket() -> object:
    return connect(HOST["control"])


@attack
def connect_to_the_control_socket_through_its_link() -> object:
    return connect(os.path.join(HOST["state"], "sandboxes", HOST["name"], "control"))


@attack
def connect_to_an_abstract_socket() -> object:
    return connect(b"\0" + os.fsencode(HOST["abstract"]))


@attack
def read_the_state_directory() -> object:
    return os.listdir(os.path.join(HOST["state"], "sandboxes"))


@attack
def write_the_state_directory() -> object:
    return plant(os.path.join(HOST["state"], "sandboxes", HOST["name"]), "state")


@attack
def write_the_upper_directory() -> object:
    return plant(os.path.join(HOST["state"], "sandboxes", HOST["name"], "roots/0/upper"), "upper")


@attack
def write_the_configuration() -> object:
    with open(HOST["config"], "a") as file:
        file.write("# escaped")
    return "wrote it"


@attack
def read_the_configuration() -> object:
    with open(HOST["config"]) as file:
        return file.read()


# The kernel


@attack
def write_a_setting_of_the_kernel() -> object:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attack
def write_any_setting_of_the_kernel() -> object:
    def try_it(path: str) -> str:
        os.close(os.open(path, os.O_WRONLY))
        return path

    found = glob.glob("/proc/sys/**/*", recursive=True) + glob.glob("/proc/[a-z]*")
    return first([partial(try_it, path) for path in found if os.path.isfile(path) and "/self" not in path])


@attack
def write_to_sysfs() -> object:
    return first(
        [partial(os.open, path, os.O_WRONLY) for path in glob.glob("/sys/kernel/**", recursive=True)]
    )


@attack
def write_to_a_control_group() -> object:
    return first([partial(plant, path, "cgroup") for path in glob.glob("/sys/fs/cgroup/*")])


@attack
def use_the_kernel_keyring() -> object:
    return check(libc.syscall(250 if os.uname().machine == "x86_64" else 219, 0, -3, 0))


@attack
def use_io_uring() -> object:
    return check(libc.syscall(425, 1, ctypes.create_string_buffer(256)))


@attack
def have_privileges() -> object:
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    held = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    if os.getuid() != 0 and held == ["CapBnd"]:
        # What a privileged program might still have, if there could be one.
        held.clear()
    if status["NoNewPrivs"] == "1" and not held:
        raise PermissionError(errno.EPERM, "no new privileges, and none")
    return status["NoNewPrivs"], held


@attack
def become_another_user_through_a_setuid_program() -> object:
    """`su` and its kind show by their effective user whether the kernel honoured the bit."""
    programs = [
        path for path in glob.glob("/usr/bin/*") if os.path.isfile(path) and os.stat(path).st_mode & 0o4000
    ]
    if not programs or os.getuid() == 0:
        raise Nothing
    process = subprocess.Popen([programs[0]], stdin=subprocess.PIPE, stdout=-3, stderr=-3)
    try:
        with open(f"/proc/{process.pid}/status") as file:
            users = next(line for line in file if line.startswith("Uid:")).split()[1:]
    finally:
        process.kill()
        process.wait()
    if set(users) == {str(os.getuid())}:
        raise PermissionError(errno.EPERM, "not honoured")
    return users


# Sockets and networks


@attack
def connect_to_a_socket_of_the_session() -> object:
    return connect(HOST["session"])


@attack
def find_the_sockets_of_services() -> object:
    known = (
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
    )
    found = [
        path
        for path in (*known, *glob.glob("/run/user/*"), *glob.glob("/tmp/.X11-unix/*"))
        if os.path.exists(path)
    ]
    return first([partial(connect, path) for path in found])


@attack
def reach_the_loopback_of_the_host() -> object:
    with socket.create_connection(("127.0.0.1", int(HOST["port"])), timeout=2):
        return "connected"


@attack
def send_a_datagram_to_the_host() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"out", ("127.0.0.1", int(HOST["datagrams"])))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # Refused at the second attempt when nobody listened to the first.
        sender.connect(("127.0.0.1", int(HOST["datagrams"])))
        sender.send(b"out")
        sender.settimeout(0.2)
        sender.recv(1)
    return "answered"


@attack
def reach_the_outside() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # Connecting a datagram socket asks for a route and sends nothing.
        sender.connect(("192.0.2.1", 9))
        return sender.getsockname()


@attack
def open_a_raw_socket() -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno()


@attack
def open_a_socket_of_the_hypervisor() -> object:
    return socket.socket(socket.AF_VSOCK).fileno()


@attack
def open_a_socket_of_an_unusual_family() -> object:
    usual = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
    families = [family for family in range(64) if family not in usual]
    return first([partial(socket.socket, family, kind) for family in families for kind in kinds])


@attack
def open_a_pair_of_sockets_of_an_unusual_family() -> object:
    families = [family for family in range(64) if family != socket.AF_UNIX]
    return first([partial(socket.socketpair, family, kind) for family in families for kind in (1, 2, 5)])


@attack
def list_the_sockets_of_the_machine() -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4).fileno()


@attack
def open_a_netlink_socket_of_another_kind_than_routes() -> object:
    kinds = [partial(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, one) for one in range(1, 32)]
    return first(kinds)


@attack
def send_to_a_socket_of_the_session_from_a_pair() -> object:
    """One end of a pair of datagram sockets can be connected to another address, or sends there."""
    end, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return first([partial(end.sendto, b"out", HOST["log"]), partial(end.connect, HOST["log"])])


@attack
def make_a_call_that_is_newer_than_the_filter() -> object:
    return first([partial(call, number, 0, 0, 0, 0) for number in range(470, 520)])


# Secrets


@attack
def read_a_key_in_the_home() -> object:
    with open(HOST["home"] + "/.ssh/id_ed25519") as file:
        return file.read()


@attack
def write_a_start_up_file_in_the_home() -> object:
    with open(HOST["home"] + "/.bashrc", "a") as file:
        file.write("escaped")
    return "wrote it"


@attack
def read_a_secret_variable() -> object:
    return os.environ["TEST_API_TOKEN"]


@attack
def read_passwords_of_the_machine() -> object:
    with open("/etc/shadow") as file:
        return len(file.read())


@attack
def change_a_system_directory() -> object:
    return first([partial(plant, top, "system") for top in ("/", "/usr", "/etc", "/opt", "/usr/local/bin")])


# What a kernel interface can change without opening anything


def mark(path: str, name: str) -> list[Callable[[], object]]:
    """Every way to give what is at *path* an extended attribute."""
    value = ctypes.create_string_buffer(b"/", 1)
    arguments = struct.pack("=QII", ctypes.addressof(value), 1, 0)
    return [
        partial(os.setxattr, path, name, b"/"),
        partial(os.setxattr, path, name, b"/", follow_symlinks=False),
        lambda: (call(463, AT_FDCWD, os.fsencode(path), 0, name.encode(), arguments, 16), value),
    ]


@attack
def change_the_mode_of_a_file_of_the_host() -> object:
    os.chmod(HOST["outside"] + "/mode", 0o777)
    return "done"


@attack
def change_the_mode_of_a_file_of_the_host_by_other_ways() -> object:
    path = HOST["outside"] + "/mode"
    directory = os.open(HOST["outside"], os.O_PATH)
    file = os.open(path, os.O_PATH)
    attempts: list[Callable[[], object]] = [
        partial(os.chmod, "mode", 0o777, dir_fd=directory),
        partial(os.chmod, f"/proc/self/fd/{file}", 0o777),
        partial(os.chmod, f"/proc/self/fd/{directory}/mode", 0o777),
        partial(os.chmod, f"/proc/{os.getpid()}/fd/{file}", 0o777),
        partial(os.chmod, f"/proc/{HOST['command']}/cwd/../outside/mode", 0o777),
        partial(os.chmod, f"/proc/self/root{path}", 0o777),
        partial(os.chmod, os.path.relpath(path), 0o777),
        partial(call, 452, file, b"", 0o777, 0x1000),
        partial(call, 452, AT_FDCWD, os.fsencode(path), 0o777, 0),
    ]
    return first(attempts)


@attack
def change_the_mode_of_a_file_of_the_host_as_a_program_of_32_bits() -> object:
    """By `int 0x80`, which every program of x86_64 can say where the kernel has it."""
    if not X86_64:
        raise Nothing
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x62, -1, ctypes.c_long(0))
    # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx; ret
    ctypes.memmove(page, bytes.fromhex("5389f889f389d1cd805bc3"), 11)
    path = os.fsencode(HOST["outside"] + "/mode") + b"\0"
    ctypes.memmove(page + 64, path, len(path))
    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(page)
    pid = os.fork()
    if pid == 0:
        os._exit(-called(15, page + 64, 0o777) & 0xFF)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        # There are none.
        raise Nothing
    if os.WEXITSTATUS(status):
        raise OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))
    return "done"


@attack
def open_what_lies_above_the_home() -> object:
    """To let another user of the machine in."""
    above = os.path.dirname(os.environ["HOME"])
    # Under bubblewrap these directories are the program's own, made for it in memory.
    places = [HOST["state"], HOST["outside"]] + [above] * (HOST["confinement"] == "landlock")
    return first([partial(os.chmod, place, 0o777) for place in places])


@attack
def change_the_mode_of_a_file_of_the_host_by_changing_the_path_meanwhile() -> object:
    """The path in memory names a file of ours and one of the host in turn."""
    mine, other = b"mine".ljust(200, b"\0"), os.fsencode(HOST["outside"] + "/mode").ljust(200, b"\0")
    with open("mine", "w"):
        pass
    path = ctypes.create_string_buffer(mine, 200)
    over = threading.Event()

    def turn() -> None:
        while not over.is_set():
            path.raw = other
            path.raw = mine

    return flipping(turn, over, path)


@attack
def change_the_mode_of_a_file_of_the_host_by_changing_a_link_meanwhile() -> object:
    with open("mine", "w"):
        pass
    for name, target in (("inwards", "mine"), ("outwards", HOST["outside"] + "/mode")):
        os.symlink(target, name)
    path = ctypes.create_string_buffer(b"turning")
    over = threading.Event()

    def turn() -> None:
        while not over.is_set():
            for name in ("inwards", "outwards"):
                os.link(name, "next", follow_symlinks=False)
                os.rename("next", "turning")

    return flipping(turn, over, path)


def flipping(turn: Callable[[], None], over: threading.Event, path: object) -> object:
    """Change modes while another thread changes what is meant."""
    turning = threading.Thread(target=turn)
    turning.start()
    for _ in range(500):
        libc.chmod(path, 0o777)
    over.set()
    turning.join()
    if os.stat(HOST["outside"] + "/mode").st_mode & 0o777 != 0o777:
        raise Nothing
    return "changed"


@attack
def change_the_owner_of_a_file_of_the_host() -> object:
    path, who = HOST["outside"] + "/mode", (os.getuid(), os.getgid())
    return first([partial(os.chown, path, *who), partial(os.lchown, path, *who)])


@attack
def change_a_file_that_can_only_be_read_by_its_descriptor() -> object:
    """Root owns what it may only read here."""
    file = os.open("/etc/passwd", os.O_RDONLY)
    attempts: list[Callable[[], object]] = [
        partial(os.fchmod, file, os.fstat(file).st_mode & 0o777),
        partial(os.fchown, file, 0, 0),
        partial(os.utime, file),
        partial(os.setxattr, file, "user.escaped", b"1"),
        partial(fcntl.ioctl, file, 0x40086602, struct.pack("=Q", 0x80)),
    ]
    return first(attempts)


@attack
def change_the_times_of_a_file_of_the_host() -> object:
    path = HOST["outside"] + "/times"
    attempts: list[Callable[[], object]] = [
        partial(os.utime, path, (1, 1)),
        partial(os.utime, path, (1, 1), follow_symlinks=False),
        partial(os.utime, "times", dir_fd=os.open(HOST["outside"], os.O_PATH)),
        lambda: check(libc.utimes(os.fsencode(path), None)),
    ]
    return first(attempts)


@attack
def set_an_attribute_of_a_file_of_the_host() -> object:
    return first(mark(HOST["outside"] + "/attribute", "user.escaped"))


@attack
def remove_an_attribute_of_a_file_of_the_host() -> object:
    path, name = os.fsencode(HOST["outside"] + "/marked"), b"user.kept"
    attempts: list[Callable[[], object]] = [
        partial(os.removexattr, path, name),
        partial(os.removexattr, path, name, follow_symlinks=False),
        partial(call, 466, AT_FDCWD, path, 0, name),
    ]
    return first(attempts)


@attack
def mark_the_upper_directory() -> object:
    """To have the next run show what a rule hides."""
    return first(mark(HOST["state"] + "/sandboxes/workspace/roots/0/upper", "user.overlay.redirect"))


@attack
def change_the_flags_of_a_file_of_the_host() -> object:
    """With file_setattr: no dump, if nothing else."""
    attributes = struct.pack("=QIIII", 0x80, 0, 0, 0, 0)
    path = os.fsencode(HOST["outside"] + "/secret")
    return call(469, AT_FDCWD, path, attributes, len(attributes), 0)


@attack
def see_whether_a_file_of_the_host_exists() -> object:
    return os.stat(HOST["outside"] + "/secret").st_size


@attack
def read_a_link_of_the_host() -> object:
    return os.readlink(HOST["outside"] + "/link")


@attack
def watch_a_directory_of_the_host() -> object:
    """To be told the names of what is made there."""
    watch = check(libc.inotify_init1(0))
    check(libc.inotify_add_watch(watch, os.fsencode(HOST["outside"]), 0x100))
    return "watching"


@attack
def lock_a_file_of_the_host() -> object:
    descriptor = os.open(HOST["outside"] + "/secret", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return "done"


def attempt(function: Callable[[], object]) -> str:
    """Try it in a process of its own: some attempts leave their process in no state for the next."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.write(writing, outcome(function).encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        result = told.read().decode()
    os.waitpid(pid, 0)
    return result or "broken: it said nothing"


def outcome(function: Callable[[], object]) -> str:
    # For what hangs: on a busy machine some attacks take long.
    signal.alarm(40)
    try:
        result = function()
    except Nothing:
        return "nothing to attack"
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"broken: {error!r}"
    return f"escaped: {result!r}"


if __name__ == "__main__":
    for descriptor in os.listdir("/proc/self/fd"):
        # Without the one that lists them.
        if int(descriptor) > 2 and os.path.exists(f"/proc/self/fd/{descriptor}"):
            INHERITED.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    with open("host.json") as given:
        HOST.update(json.load(given))
    # The test writes it into the workspace once it knows who serves us, and the view follows.
    while not os.path.exists("pids"):
        time.sleep(0.02)
    with open("pids") as pids:
        HOST["daemon"], HOST["command"] = pids.read().split()
    json.dump({name: attempt(function) for name, function in ATTACKS.items()}, sys.stdout)
