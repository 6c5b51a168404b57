"""The system call filter, interpreted as the kernel does it, also for other architectures."""

import errno
import struct

import pytest

from khala.tools.sandbox import seccomp
from khala.tools.sandbox.seccomp import ALLOW, KILL, MACHINES, REFUSE

READ, MMAP, SOCKET, CLONE, PRCTL = (0, 63), (9, 222), (41, 198), (56, 220), (157, 167)
NAMES = list(MACHINES)


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The filter's decision about a system call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("=IIQ6Q", number, MACHINES[machine].audit if audit is None else audit, 0, *padded)
    lines = list(struct.iter_unpack("=HBBI", seccomp.compile_filter(machine)))
    value, at = 0, 0
    while True:
        code, then, otherwise, operand = lines[at]
        at += 1
        match code:
            case 0x20:
                [value] = struct.unpack_from("=I", call, operand)
            case 0x54:
                value &= operand
            case 0x06:
                return int(operand)
            case _:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                at += then if holds else otherwise


@pytest.mark.parametrize("machine", NAMES)
def test_ordinary_calls_pass(machine: str) -> None:
    column = MACHINES[machine].column
    assert verdict(machine, READ[column]) == ALLOW
    assert verdict(machine, SOCKET[column], 1, 1) == ALLOW
    assert verdict(machine, MMAP[column], 0, 4096, 3, 0x22) == ALLOW
    assert verdict(machine, MMAP[column], 0, 4096, 3, 0x01, 5) == ALLOW
    assert verdict(machine, CLONE[column], 0x3D0F00) == ALLOW
    assert verdict(machine, CLONE[column], 0x01200011) == ALLOW
    assert verdict(machine, PRCTL[column], 15) == ALLOW


@pytest.mark.parametrize("machine", NAMES)
def test_listed_calls_are_refused(machine: str) -> None:
    column = MACHINES[machine].column
    for name, numbers in seccomp.REFUSED.items():
        number = numbers[column]
        if number is not None:
            assert verdict(machine, number) == REFUSE | errno.EPERM, name
    for name, known in seccomp.UNSUPPORTED.items():
        assert verdict(machine, known[column]) == REFUSE | errno.ENOSYS, name


@pytest.mark.parametrize("machine", NAMES)
def test_some_calls_are_refused_by_their_arguments(machine: str) -> None:
    column = MACHINES[machine].column
    for family in (0, 2, 10, 16, 17, 38, 40):
        assert verdict(machine, SOCKET[column], family) == REFUSE | errno.EAFNOSUPPORT
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, CLONE[column], flag | 17) == REFUSE | errno.EPERM
    assert verdict(machine, MMAP[column], 0, 4096, 3, 0x21) == REFUSE | errno.EPERM
    assert verdict(machine, MMAP[column], 0, 4096, 3, 0x4023) == REFUSE | errno.EPERM
    assert verdict(machine, PRCTL[column], 1, 0) == REFUSE | errno.EPERM


@pytest.mark.parametrize("machine", NAMES)
def test_no_call_passes_with_another_architecture(machine: str) -> None:
    assert verdict(machine, 0, audit=0x40000003) == KILL
    if machine == "x86_64":
        assert verdict(machine, 0x40000000) == KILL


def test_no_call_number_is_listed_twice() -> None:
    for column in (0, 1):
        numbers = [known[column] for known in (*seccomp.REFUSED.values(), *seccomp.UNSUPPORTED.values())]
        listed = [number for number in numbers if number is not None]
        assert len(listed) == len(set(listed))
    assert not seccomp.supports("riscv64")


@pytest.mark.parametrize("machine", NAMES)
def test_open_file_description_locks_are_refused_and_other_fcntl_commands_pass(machine: str) -> None:
    number = seccomp.FCNTL[MACHINES[machine].column]
    for command in (37, 38):
        assert verdict(machine, number, 6, command) == REFUSE | errno.ENOLCK
    for command in (*range(8), 36, 1030, 1033):
        assert verdict(machine, number, 6, command) == ALLOW


@pytest.mark.parametrize("machine", NAMES)
def test_no_thread_gets_its_own_descriptor_table(machine: str) -> None:
    number = CLONE[MACHINES[machine].column]
    thread = 0x3D0F00
    assert verdict(machine, number, thread & ~0x400) == REFUSE | errno.EPERM
    # A process may share its table: its locks are then counted for each process.
    for flags in (thread, 0x400 | 17, 0x4111, 17):
        assert verdict(machine, number, flags) == ALLOW
