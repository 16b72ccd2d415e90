"""Walls around the processes that open models: whatever a file makes them do, there is little that they can do.

On Linux, Landlock leaves a process a few folders to read and one of its own to write, and a seccomp filter takes
away sockets, other programs, other processes and the system's own settings. Both are asked of the kernel directly:
they are a handful of calls, and hold for good. What the kernel does not offer is not in force, and is said so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import itertools
import os
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from pathlib import Path

from likewise import errors
from likewise.contracts.values import dataclass

SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/sys"),
    *(f"/etc/{name}" for name in ("ld.so.cache", "localtime", "timezone", "passwd", "group", "nsswitch.conf")),
    *("/etc/os-release", "/etc/OpenCL", "/etc/alternatives", "/dev/random", "/dev/urandom", "/dev/zero"),
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "version", "filesystems", "loadavg", "sys", "driver")),
)
"""What a program reads of a system that it runs on: libraries, time zones, processors and memory. No home folders."""

LOADERS = "/lib*/ld-*.so*"
"""What the kernel runs with a program, to load its libraries."""

DEVICES = ("/dev/null", "/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/accel*", "/proc/self/clear_refs")
"""What a runtime also writes to."""

SHARED = "/dev/shm"
"""Where the C library keeps the locks of Python's pools, of threads too."""

CACHES = (
    *("HOME", "TMPDIR", "TEMP", "TMP", "JOBLIB_TEMP_FOLDER", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
)
"""Where frameworks keep what they write on the way."""

MOST_BESIDE = 4_096
"""Files beside a model that may be read with it: weights are kept apart from graphs, but not in so many pieces."""

MOST_LOOKED = 100_000
"""Entries of the folders beside a model that are looked at for hidden ones, nearest first; what is beyond is closed."""

LARGEST_FILE, MOST_TASKS, LEAST_MEMORY = 64 << 30, 32_768, 8 << 30
"""Bytes of a file, and processes and threads of a user: more than a model needs, less than fills a machine. Memory
that a process may ask for is what the machine has, but not less than this: much of it is asked for and never used."""

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
NO_NEW_PRIVS, SECCOMP = 38, {"x86_64": 317, "aarch64": 277}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_FILE = (1 << bit for bit in (0, 1, 2, 3, 5, 8))
REFER, TRUNCATE, IOCTL = (1 << bit for bit in (13, 14, 15))
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
READ = READ_FILE | READ_DIR
NEVER = EXECUTE | 1 << 6 | 1 << 9 | 1 << 11
"""Running, and making devices and sockets: not even in the folder that is the process's own."""

DENIED = {
    # Other programs, and the insides of other processes.
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117), "kcmp": (312, 272),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "ioprio_set": (251, 30),
    # A group of processes of its own, which would not end with ours.
    "setsid": (112, 157), "setpgid": (109, 154),
    # The network, and what is shared with other programs by a name.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    # Calls that go round a filter of calls, and views of the files that go round rules about them.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    # Owners, attributes and lengths of files, which Landlock leaves alone or learnt late.
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "truncate": (76, 45),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469), "mknod": (133, None), "mknodat": (259, 33),
    # The system itself.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "syslog": (103, 116),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "swapon": (167, 224), "swapoff": (168, 225),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "vhangup": (153, 58),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None),
}  # fmt: skip
"""Calls that are refused, by their numbers on x86-64 and on 64-bit Arm."""

RUNNING = ("execve",)
"""The call that becomes another program; which one may be run is for Landlock to say."""

ASKING = ("socket", "connect", "bind")
"""Calls of those who ask servers; names are looked up over a socket that is bound to the system itself."""

PRETENDED = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Calls that do nothing: libraries touch what they copy, and need not know that it has no effect."""

UNKNOWN = {"clone3": (435, 435)}
"""A call whose arguments a filter cannot see; the C library then uses an older one, whose arguments it can."""

SOCKETPAIR, CLONE, PRLIMIT, SETPRIORITY = (53, 199), (56, 220), (302, 261), (141, 140)
ASK_DEVICE, ASK_FILE = (16, 29), (72, 25)
SCHEDULING = {"sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274)}
NEW_NAMESPACES, STREAM = 0x7E020000, 1

REQUESTS = (
    *(0x5401, 0x802C542A, 0x540F, 0x5413),  # TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ: is this a terminal, and how wide?
    *(0x541B, 0x5411, 0x5421, 0x5450, 0x5451, 0x5460),  # FIONREAD, TIOCOUTQ, FIONBIO, FIONCLEX, FIOCLEX, FIOQSIZE
)
"""What `ioctl` may be asked of any file: how much waits in it, and how this process holds it."""

DEVICES_REQUESTS = (0x00, *map(ord, "FHKdm"), 0xDC)
"""Kinds of requests that drivers of GPUs and accelerators know. File systems keep theirs under others, and some of
these change files that were opened to be read: attributes, versions, blocks that two files share."""

ON_OTHERS = (8, 10, 15, 1024, 1026)
"""What `fcntl` may not be asked: F_SETOWN, F_SETSIG and F_SETOWN_EX send signals, F_SETLEASE stops who writes to a
file, F_NOTIFY watches a folder."""

CAPABILITIES = 0x20080522
READ_ANY_FILE = 1 << 2
"""The one right of root that is kept, where there is one: reading files of others, of which Landlock says which."""

_TOLD: ContextVar[str] = ContextVar("walls", default="none: the models ran in the caller's own process")
"""What is in force, for the gate that this thread is about: others may have other walls."""

_kept: list[int] = []
_enclosed: list[bool] = []


def in_force() -> str:
    """What confined the models of this process, in the words of a report."""
    return _TOLD.get()


def tell(what: str) -> None:
    """Note what is in force, in this process or in the one that works for it."""
    _TOLD.set(what)


def enclose(*, network: bool = False) -> None:
    """The walls that processes share which may end each other: no TCP, no signals to others, no abstract sockets.

    Raised by `confine` where they are not there yet; before, by who makes processes that are confined one by one.
    """
    if not _enclosed and (abi := _abi()) >= 4:
        attributes = struct.pack("=QQQ", 0, 0 if network else 3, 3 if abi >= 6 else 0)
        with contextlib.suppress(OSError):
            _restrict(_call(CREATE_RULESET, attributes, 24 if abi >= 6 else 16, 0))
            _enclosed.append(True)  # processes that are made from here on are within, and know it


@dataclass(frozen=True, slots=True)
class Walls:
    """What is left to a process beside what Python and the system consist of.

    `own` are folders that it may write to, the first of them for what is temporary; `readable` it may read; of
    `listed` folders it knows the names of what is in them. `shared`: locks and memory that processes share.
    `programs` are files that it may run: what is confined before it becomes another program has that one left.
    `network`: it may ask servers, as what sends requests for others does.
    """

    own: tuple[str, ...]
    readable: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    shared: bool = False
    programs: tuple[str, ...] = ()
    network: bool = False


def confine(walls: Walls) -> str:
    """Raise the walls around this process, for good; what is in force then."""
    own = walls.own
    limited = _limit()
    if sys.platform != "linux":
        tell(f"none: {sys.platform} has none that is known here{limited}")
        return in_force()
    os.environ.update(dict.fromkeys(CACHES, own[0]))
    tempfile.tempdir = own[0]
    _libc().prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    enclose(network=walls.network)
    parts = []
    try:
        parts.append(f"landlock abi {_confine_files(walls)}")
        parts += ["shared memory"] if walls.shared else []
    except OSError as error:
        parts.append(f"files open: no landlock ({error.strerror})")
    try:
        _filter_calls((*(RUNNING if walls.programs else ()), *(ASKING if walls.network else ())))
        # Which program may be run is for Landlock to say, where it is there.
        others = "no other programs" if parts[0].startswith("landlock") else "programs open"
        parts += ["network open" if walls.network else "no network", others if walls.programs else "no exec"]
    except OSError as error:
        parts.append(f"network and exec open: no seccomp ({error.strerror})")
    try:
        _give_up_rights()
    except OSError as error:
        parts.append(f"rights of root kept ({error.strerror})")
    tell(", ".join(parts))
    errors.confined = own[0]
    return in_force()


def beside(path: str) -> Iterator[str]:
    """A file, and what may belong to it: the files and folders beside it, without hidden ones and links.

    In a home folder or above, folders beside it have nothing to do with it.
    """
    yield path
    for folder in {os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))}:
        yield from itertools.islice(_open_parts(folder), MOST_BESIDE)


def _open_parts(top: str) -> Iterator[str]:
    """What is in a folder and not hidden: folders as a whole where nothing in them is, else the parts of them."""
    # Of a folder: the one that holds it, its files and its folders.
    held: dict[str, tuple[str, list[str], list[str]]] = {}
    mixed, waiting, left = {top, ""}, deque([("", top)]), iter(range(MOST_LOOKED))

    def mix(folder: str) -> None:
        while folder not in mixed:
            mixed.add(folder)
            folder = held[folder][0]

    while waiting:
        above, folder = waiting.popleft()
        files: list[str] = []
        folders: list[str] = []
        held[folder] = above, files, folders
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if next(left, None) is None:
                    mix(folder)
                    break
                if entry.name.startswith("."):
                    mix(folder)
                elif not entry.is_symlink():
                    (folders if entry.is_dir() else files).append(entry.path)
        if folder == top and holds_homes(top):
            folders.clear()
        waiting.extend((folder, inside) for inside in folders)
    waiting.append(("", top))
    while waiting:
        _, folder = waiting.popleft()
        if folder not in mixed:
            yield folder
            continue
        _, files, folders = held[folder]
        yield from files
        waiting.extend((folder, inside) for inside in folders)


def holds_homes(folder: str) -> bool:
    """Is that the user's home folder, or one above it?"""
    home = os.path.realpath(os.path.expanduser("~"))
    return os.path.commonpath([os.path.abspath(folder), home]) == os.path.abspath(folder)


def _of_python() -> Iterator[str]:
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[1]))
    yield from (entry for entry in sys.path if os.path.isabs(entry))
    yield from (entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(entry))
    for name, module in list(sys.modules.items()):
        # How some installers put a package that is being worked on elsewhere on the path.
        if name.startswith("__editable__"):
            yield from map(str, getattr(module, "MAPPING", {}).values())


def _limit() -> str:
    try:
        import resource
    except ImportError:
        return ""
    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: LARGEST_FILE, resource.RLIMIT_NPROC: MOST_TASKS}
    if sys.platform == "linux":
        # No priority above that of others, also for users whom the system allows it.
        wanted |= {resource.RLIMIT_NICE: 0, resource.RLIMIT_RTPRIO: 0}
        wanted[resource.RLIMIT_DATA] = max(LEAST_MEMORY, memory) if (memory := _memory()) else resource.RLIM_INFINITY
        # Where it runs out all the same, it is this process that ends, and no other of the machine.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    for what, most in wanted.items():
        soft, hard = resource.getrlimit(what)
        known = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (min(known), min(known)))
    return ", limits on file size and processes"


def _memory() -> int:
    """Bytes that the machine has, with what it can put aside on a disk."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        return sum(1024 * int(words[1]) for words in lines if words[0] in ("MemTotal:", "SwapTotal:"))
    return 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    answer: int = _libc().syscall(ctypes.c_long(number), *words)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


def _abi() -> int:
    """The version of Landlock that this system has; 0 for none."""
    if sys.platform != "linux":
        return 0
    with contextlib.suppress(OSError):
        return _call(CREATE_RULESET, 0, 0, 1)
    return 0


def _confine_files(walls: Walls) -> int:
    abi = _call(CREATE_RULESET, 0, 0, 1)
    every = (1 << 13) - 1 | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL if abi >= 5 else 0)
    rules = _call(CREATE_RULESET, struct.pack("=Q", every), 8, 0)
    devices = (path for pattern in DEVICES for path in glob.glob(pattern))
    for access, paths in (
        (READ, (*_of_python(), *SYSTEM, *walls.readable)),
        (READ | EXECUTE, (*walls.programs, *(glob.glob(LOADERS) if walls.programs else ()))),
        (READ_DIR, walls.listed),
        (READ | WRITE_FILE | IOCTL, devices),
        # Without a look at the names: locks are found by theirs, and what others share is not.
        (READ_FILE | WRITE_FILE | TRUNCATE | MAKE_FILE | REMOVE_FILE, (SHARED,) if walls.shared else ()),
        (every & ~NEVER, walls.own),
    ):
        for path in dict.fromkeys(paths):
            _allow(rules, path, access & every)
    # Held open: the system may forget what it knows of this process there, and the rule with it.
    _kept.extend(_allow(rules, "/proc/self", READ, keep=True))
    _restrict(rules)
    return abi


def _allow(rules: int, path: str, access: int, *, keep: bool = False) -> list[int]:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return []
    try:
        if not os.path.isdir(path):
            access &= ON_FILES
        with contextlib.suppress(OSError):
            _call(ADD_RULE, rules, 1, struct.pack("=Qi", access, place), 0)
    finally:
        if not keep:
            os.close(place)
    return [place] if keep else []


def _restrict(rules: int) -> None:
    try:
        _libc().prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _give_up_rights() -> None:
    """What root may do beyond what its files allow: setting clocks, networks, priorities above those of others."""
    libc = _libc()
    for right in range(64):
        libc.prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP, which only root may, and only root has to
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    about, held = struct.pack("=Ii", CAPABILITIES, 0), ctypes.create_string_buffer(24)
    found = libc.capget(about, held)
    effective, permitted, *_ = struct.unpack("=6I", held.raw)
    left = struct.pack("=6I", effective & READ_ANY_FILE, permitted & READ_ANY_FILE, 0, 0, 0, 0)
    if found or libc.capset(about, left):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _filter_calls(allowed: Collection[str]) -> None:
    machine = os.uname().machine
    if machine not in SECCOMP:
        raise OSError(errno.ENOSYS, f"no filter for {machine}")
    program = b"".join(_program(machine, allowed))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    # Without the second flag, some systems make every model slower.
    for flags in (4, 0):
        with contextlib.suppress(OSError):
            _call(SECCOMP[machine], 1, flags, header)
            return
    _call(SECCOMP[machine], 1, 0, header)


def _program(machine: str, allowed: Collection[str]) -> Iterator[bytes]:
    """The filter: a list of instructions for the kernel's small machine, each a word, two jumps and a number."""
    column = list(SECCOMP).index(machine)
    load, masked, equal, at_least, any_of, leave = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000

    def step(code: int, number: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, number)

    yield step(load, 4)
    yield step(equal, ARCHITECTURE[machine], 1, 0)
    yield step(leave, refuse | errno.EPERM)
    yield step(load, 0)
    if machine == "x86_64":
        # The calls of another numbering that this processor also takes.
        yield step(at_least, 0x40000000, 0, 1)
        yield step(leave, refuse | errno.EPERM)
    for calls, answer in ((DENIED, errno.EACCES), (PRETENDED, 0), (UNKNOWN, errno.ENOSYS)):
        for number in (numbers[column] for name, numbers in calls.items() if name not in allowed):
            if number is not None:
                yield step(equal, number, 0, 1)
                yield step(leave, refuse | answer)
    # Pairs of connected sockets within the process (a datagram could be sent to any other), limits, priority and class
    # of the process itself, and no namespaces. Each looks at arguments, at some bits of them. Threads are put on
    # processors by their numbers, which nobody can tell from those of other processes here.
    # Files are asked for nothing that would change them or tell of others.
    every, itself = 0xFFFFFFFF, (0, 0xFFFFFFFF, equal, 0, 1, 0)
    for numbers, tests in (
        (SOCKETPAIR, ((1, 0xF, equal, STREAM, 1, 0),)),
        (PRLIMIT, (itself,)),
        (SETPRIORITY, (itself, (1, every, equal, 0, 1, 0))),
        *((found, (itself,)) for found in SCHEDULING.values()),
        (CLONE, ((0, every, any_of, NEW_NAMESPACES, 0, 1),)),
        (ASK_FILE, tuple((1, every, equal, request, 0, 1) for request in ON_OTHERS)),
    ):
        yield step(equal, numbers[column], 0, 4 * len(tests) + 1)
        for argument, bits, test, value, yes, no in tests:
            yield step(load, 16 + 8 * argument)
            yield step(masked, bits)
            yield step(test, value, yes, no)
            yield step(leave, refuse | errno.EACCES)
        yield step(leave, allow)
    known = [*((every, request) for request in REQUESTS), *((0xFF00, kind << 8) for kind in DEVICES_REQUESTS)]
    yield step(equal, ASK_DEVICE[column], 0, 4 * len(known) + 1)
    for bits, value in known:
        yield step(load, 24)
        yield step(masked, bits)
        yield step(equal, value, 0, 1)
        yield step(leave, allow)
    yield step(leave, refuse | errno.EACCES)
    yield step(leave, allow)
