"""The seccomp filter of a sandbox: the system calls that its programs may not make, as byte code for the kernel.

Namespaces remove what a program could reach. The filter removes what a program needs only to attack the kernel, to hide
memory from being counted, or to reach past its namespaces (AF_VSOCK has none). It lists refused calls, not allowed
ones, so that language runtimes of all versions work.
"""

import errno
import struct

import msgspec

ALLOW = 0x7FFF0000
KILL = 0x80000000
REFUSE = 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 24, 40
X32 = 0x40000000
NEW_NAMESPACES = 0x7E020000
"""All flags CLONE_NEW… of `clone`."""
AF_UNIX = 1
PR_SET_PDEATHSIG = 1
CLONE_FILES, CLONE_THREAD = 0x400, 0x10000
OFD_LOCKS = (37, 38)
"""F_OFD_SETLK and F_OFD_SETLKW. Their locks belong to an open file. The locks of a file in a socket are not counted."""
SHARED_ANONYMOUS = 0x21
"""MAP_SHARED and MAP_ANONYMOUS."""


class Machine(msgspec.Struct, frozen=True):
    """An architecture's number in the audit interface, and its column in the tables below."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}

# Numbers on x86_64 and aarch64; None if an architecture lacks the call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Other processes' memory and descriptors.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Memory that belongs to no process, and so is not counted.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    # File systems and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # The kernel itself.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "personality": (135, 92),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# Programs have fallbacks for these. The arguments of `clone3` are in memory, which a filter can't read.
UNSUPPORTED: dict[str, tuple[int, int]] = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
SOCKET, SOCKETPAIR, CLONE, PRCTL, MMAP = (41, 198), (53, 199), (56, 220), (157, 167), (9, 222)
FCNTL = (72, 25)


def supports(machine: str) -> bool:
    """Whether there is a filter for this architecture, named as by `platform.machine()`."""
    return machine in MACHINES


def compile_filter(machine: str) -> bytes:
    """The filter: an array of `struct sock_filter`. Raises `KeyError` for an unsupported architecture."""
    target = MACHINES[machine]
    column = target.column
    instructions = _require_architecture(target)
    for number in (calls[column] for calls in REFUSED.values()):
        if number is not None:
            instructions += _refuse(number, errno.EPERM)
    for calls in UNSUPPORTED.values():
        instructions += _refuse(calls[column], errno.ENOSYS)
    instructions += _refuse_unless_equal(SOCKET[column], AF_UNIX, errno.EAFNOSUPPORT)
    instructions += _refuse_unless_equal(SOCKETPAIR[column], AF_UNIX, errno.EAFNOSUPPORT)
    instructions += _refuse_if_any_bit(CLONE[column], NEW_NAMESPACES)
    # The whole tree ends with the server. No process may change that.
    instructions += _refuse_if_equal(PRCTL[column], PR_SET_PDEATHSIG)
    # The server counts record locks by a process's table of descriptors, so no thread may have a table of its own.
    instructions += _refuse_if_bits(CLONE[column], CLONE_THREAD | CLONE_FILES, CLONE_THREAD, offset=FIRST_ARGUMENT)
    for command in OFD_LOCKS:
        instructions += _refuse_by_argument(
            FCNTL[column], _instruction(EQUAL, command, otherwise=1), errno.ENOLCK, offset=SECOND_ARGUMENT
        )
    # Shared memory without a file remains when it is partly unmapped, and the kernel does not report how much.
    instructions += _refuse_if_bits(MMAP[column], SHARED_ANONYMOUS, SHARED_ANONYMOUS, offset=FOURTH_ARGUMENT)
    return b"".join([*instructions, _instruction(RETURN, ALLOW)])


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode one instruction. `then` and `otherwise` are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _require_architecture(target: Machine) -> list[bytes]:
    """Kill processes that use the system calls of another architecture. Leaves the call's number loaded."""
    instructions = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(EQUAL, target.audit, then=1),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER),
    ]
    if target.column == 0:
        instructions += [_instruction(AT_LEAST, X32, otherwise=1), _instruction(RETURN, KILL)]
    return instructions


def _refuse(number: int, error: int) -> list[bytes]:
    return [_instruction(EQUAL, number, otherwise=1), _instruction(RETURN, REFUSE | error)]


def _refuse_unless_equal(number: int, value: int, error: int) -> list[bytes]:
    return _refuse_by_argument(number, _instruction(EQUAL, value, then=1), error)


def _refuse_if_equal(number: int, value: int) -> list[bytes]:
    return _refuse_by_argument(number, _instruction(EQUAL, value, otherwise=1), errno.EPERM)


def _refuse_if_any_bit(number: int, bits: int) -> list[bytes]:
    return _refuse_by_argument(number, _instruction(ANY_BIT, bits, otherwise=1), errno.EPERM)


def _refuse_if_bits(number: int, mask: int, bits: int, *, offset: int) -> list[bytes]:
    """Refuse the call if an argument has exactly these of the mask's bits."""
    return [
        _instruction(EQUAL, number, otherwise=5),
        _instruction(LOAD, offset),
        _instruction(AND, mask),
        _instruction(EQUAL, bits, otherwise=1),
        _instruction(RETURN, REFUSE | errno.EPERM),
        _instruction(LOAD, NUMBER),
    ]


def _refuse_by_argument(number: int, test: bytes, error: int, *, offset: int = FIRST_ARGUMENT) -> list[bytes]:
    """Refuse the call, unless `test` of the low half of an argument skips the next instruction."""
    return [
        _instruction(EQUAL, number, otherwise=4),
        _instruction(LOAD, offset),
        test,
        _instruction(RETURN, REFUSE | error),
        _instruction(LOAD, NUMBER),
    ]
