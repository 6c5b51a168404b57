"""The sandbox: hostile programs. Each attack is a real one, and most would succeed outside the sandbox."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from errno import (
    EACCES,
    EAFNOSUPPORT,
    EAGAIN,
    ECONNREFUSED,
    EFBIG,
    EINVAL,
    ENOENT,
    ENOLCK,
    ENOSPC,
    ENOSYS,
    EPERM,
    EROFS,
    ESRCH,
)
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from khala.tools.sandbox import Sandbox
from tests.support.sandbox_programs import ProgramRun, event_loop_delays, run_program, running, sandbox, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def inside() -> AsyncIterator[Sandbox]:
    yield await sandbox()


async def attempt(inside: Sandbox, code: str, seconds: float = 10) -> ProgramRun:
    """Run Python code that attempts something. It prints BREACH if it succeeds, and else the error with its errno."""
    lines = "\n".join(f"    {line}" for line in code.strip().splitlines())
    tried = (
        "import ctypes, os, socket, subprocess\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(number, *args):\n"
        "    if libc.syscall(number, *args) < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
        f"try:\n{lines}\n    print('BREACH')\nexcept OSError as error:\n    print('errno', error.errno, error)\n"
    )
    return await run_program(inside, tried, seconds=seconds)


async def assert_refused(inside: Sandbox, code: str, *errnos: int) -> None:
    """Assert that the kernel refuses the code with one of these errnos.

    Any other error, such as a mistake in the code, fails the test.
    """
    result = await attempt(inside, code)
    word, number, *_ = [*result.out.split(), "", ""]
    assert word == "errno", result
    assert int(number) in errnos, result


async def test_the_network_is_unreachable(inside: Sandbox) -> None:
    visitors: list[object] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append(reader)
        writer.close()

    async with await asyncio.start_server(visited, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            await until(lambda: len(visitors) == 1)
        await assert_refused(inside, f"socket.create_connection(('127.0.0.1', {port}), timeout=1)", EAFNOSUPPORT)
        shell = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo BREACH'; cat /proc/net/dev"
        result = await run_program(inside, shell, "shell")
        assert "BREACH" not in result.out
        assert [line.split(":")[0].strip() for line in result.out.splitlines() if ":" in line] == ["lo"]
        node = f"require('net').connect({port}, '127.0.0.1', () => console.log('BREACH')).on('error', () => 0)"
        assert "BREACH" not in (await run_program(inside, node, "javascript")).out
        assert len(visitors) == 1


async def test_names_are_not_resolved(inside: Sandbox) -> None:
    await assert_refused(inside, "print(socket.getaddrinfo('example.com', 80))", socket.EAI_AGAIN, socket.EAI_NONAME)


@pytest.mark.parametrize("family", ["INET", "INET6", "NETLINK", "PACKET", "VSOCK", "ALG", "BLUETOOTH"])
async def test_only_local_sockets_can_be_made(inside: Sandbox, family: str) -> None:
    await assert_refused(
        inside, f"socket.socket(socket.AF_{family}, socket.SOCK_RAW if '{family}' == 'NETLINK' else 1)", EAFNOSUPPORT
    )


async def test_the_machines_unix_sockets_are_unreachable(inside: Sandbox, tmp_path: Path) -> None:
    abstract = f"\0khala-{uuid4().hex}"
    for address, errno in ((str(tmp_path / "socket"), ENOENT), (abstract, ECONNREFUSED)):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(address)
            server.listen()
            client.connect(address)
            await assert_refused(inside, f"socket.socket(socket.AF_UNIX).connect({address!r})", errno)


async def test_the_machines_files_are_not_there(inside: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    project = Path(__file__).resolve().parents[2]
    paths = [
        "/etc/shadow",
        "/etc/hostname",
        "/root",
        "/home",
        "/var",
        "/sys",
        "/boot",
        "/opt",
        "/srv",
        "/mnt",
        "/run/lock",
    ]
    for path in [*paths, str(secret), str(project), __file__, f"/proc/{os.getpid()}/root/etc/shadow"]:
        await assert_refused(inside, f"os.stat({path!r})", ENOENT)
    result = await run_program(inside, "cat /etc/passwd; cat /proc/1/root/etc/passwd; ls /etc", "shell")
    assert result.out.split() == [
        *["nobody:x:65534:65534:nobody:/tmp:/bin/sh"] * 2,
        *[name for name in ("alternatives", "group", "ld.so.cache", "passwd") if name in result.out],
    ]


async def test_no_path_leads_out_of_the_sandbox(inside: Sandbox) -> None:
    for path in (
        "/proc/self/cwd/../../etc/shadow",
        "/dev/fd/../root/etc/shadow",
        "/proc/1/cwd/root",
        "/tmp/../../../root",
    ):
        await assert_refused(inside, f"os.stat({path!r})", ENOENT)
    result = await run_program(inside, "ls /proc/self/fd; ls -l /proc/1/fd | grep -c :", "shell")
    # The fourth descriptor is one that `ls`, and the first shell, which waits, opened itself.
    assert result.out.split() == ["0", "1", "2", "3", "4"], result


async def test_the_environment_has_no_secrets_of_the_server(inside: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALA_SECRET", "sesame")
    result = await run_program(inside, "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline", "shell")
    assert "PATH=" in result.out
    assert "sesame" not in result.out
    assert os.environ["PATH"] not in result.out


async def test_other_processes_are_not_visible(inside: Sandbox) -> None:
    marker = uuid4().hex
    process = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 60 && : {marker}")
    try:
        result = await run_program(inside, "ls /proc | grep '^[0-9]'; cat /proc/[0-9]*/cmdline", "shell")
        assert marker not in result.out
        assert len([line for line in result.out.splitlines() if line.isdigit()]) < 8
    finally:
        process.kill()
        await process.wait()


async def test_the_server_can_not_be_killed_or_traced(inside: Sandbox) -> None:
    for pid in (os.getpid(), os.getppid()):
        await assert_refused(inside, f"os.kill({pid}, 9)", ESRCH)
    await assert_refused(
        inside, f"call(101 if os.uname().machine == 'x86_64' else 117, 16, {os.getpid()}, 0, 0)", EPERM
    )
    await assert_refused(inside, "call(101 if os.uname().machine == 'x86_64' else 117, 16, 1, 0, 0)", EPERM)
    result = await run_program(inside, "import os\nos.kill(1, 9)\nprint('alive', flush=True)\nos.system('kill -9 -1')")
    assert result.out == "alive\n"
    assert result.end.reason == "signal"


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_a_fork_bomb_does_no_harm(inside: Sandbox, language: str) -> None:
    async with event_loop_delays() as beats:
        if language == "python":
            result = await run_program(
                inside, "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", seconds=1.5
            )
        else:
            result = await run_program(inside, "f() { f | f & }; f; while :; do :; done", "shell", seconds=1.5)
    assert result.end.reason in {"timeout", "memory"}, result
    assert max(beats) < 1.5
    assert (await run_program(inside, "echo next", "shell")).out == "next\n"


async def test_processes_and_threads_are_counted(inside: Sandbox) -> None:
    result = await run_program(
        inside,
        "import subprocess\nmade = []\ntry:\n  while True: made.append(subprocess.Popen(['sleep', '60']))\n"
        "except OSError: print(len(made))",
    )
    assert 1 < int(result.out) < inside.options.max_processes


HOARDS = {
    "many processes": """
import os, time
for n in range(8):
    if os.fork() == 0:
        x = bytearray(b'x') * (200 << 20)
        break
time.sleep(9)
""",
    "many threads": """
import threading
x = []
def grow():
    while True: x.append(b'x' * (1 << 20))
for n in range(8): threading.Thread(target=grow).start()
""",
    "files in memory": """
import time
for n in range(100_000): open(f'/tmp/{n}', 'w').close()
time.sleep(9)
""",
    "page tables": """
import mmap, os, time
for n in range(60):
    if os.fork() == 0: break
x = mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(0, 400 << 20, 4096): x[n] = 1
time.sleep(9)
""",
}


@pytest.mark.parametrize("way", HOARDS)
async def test_memory_is_limited_however_it_is_allocated(inside: Sandbox, way: str) -> None:
    result = await run_program(inside, HOARDS[way])
    assert result.end.reason == "memory" or "MemoryError" in result.err, result
    assert result.end.seconds < 5


async def test_one_process_gets_no_more_than_its_memory(inside: Sandbox) -> None:
    result = await run_program(inside, "x = bytearray(10**9)")
    assert result.end.code == 1
    assert "MemoryError" in result.err
    grow = "const all = []; for (;;) all.push(new Array(1e6).fill(Math.random()))"
    result = await run_program(inside, grow, "javascript", seconds=20)
    assert result.end.reason in {"signal", "memory"}, result


@pytest.mark.parametrize("numbers", ["319, 279", "29, 194", "447, 447", "68, 186", "206, 0"])
async def test_memory_can_not_be_hidden(inside: Sandbox, numbers: str) -> None:
    await assert_refused(inside, f"call(({numbers})[os.uname().machine == 'aarch64'], b'x', 1 << 20, 0o1600)", EPERM)


def kernel_memory() -> int:
    """The unreclaimable kernel memory of the whole machine, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SUnreclaim:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("The kernel does not say.")


@contextlib.asynccontextmanager
async def kernel_memory_growth() -> AsyncIterator[list[int]]:
    """The growth of the kernel memory in bytes, sampled while the context is open."""
    before, grown = kernel_memory(), [0]

    async def look() -> None:
        while True:
            grown.append(kernel_memory() - before)
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield grown
    finally:
        looking.cancel()


MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t] * 6
libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
for n in range(40):
    if os.fork() == 0: break
start = libc.mmap(0, 256 << 20, 1, 0x22, 2**64 - 1, 0)
for page in range(0, 64_000, 2): libc.mprotect(start + page * 4096, 4096, 3)
print('BREACH', flush=True)
time.sleep(9)
"""
"""Splits a mapping into 64,000, in each of many processes: about 600 MiB of the kernel's, and hardly any of theirs."""


async def test_mappings_are_counted_because_each_takes_the_kernels_memory(inside: Sandbox) -> None:
    uncounted = Sandbox(inside.tool, inside.runtimes, inside.options)
    async with kernel_memory_growth() as grown:
        result = await run_program(uncounted, MAPPINGS, seconds=10)
    assert result.end.reason == "memory", result
    assert max(grown) < 256 << 20


async def test_a_control_group_counts_what_the_kernel_holds(inside: Sandbox) -> None:
    if inside.groups is None:
        pytest.skip("this process may make no control groups with a memory limit here")
    # Without the limit of mappings, the processes' own memory is less than half of their limit.
    options = msgspec.structs.replace(inside.options, max_maps=1 << 40, memory=300 << 20, kernel=0)
    counted = Sandbox(inside.tool, inside.runtimes, options, groups=inside.groups)
    result = await run_program(counted, MAPPINGS.replace("range(40)", "range(28)"), seconds=40)
    assert (result.end.reason, result.end.code) == ("memory", None), result
    assert (await run_program(counted, "print('next')")).out == "next\n"
    assert list(inside.groups.base.glob(f"khala-sandbox-{os.getpid()}-*")) == []


LOCKS = """
import fcntl, os, time
for n in range(8):
    if os.fork() == 0: break
files = [open(f'/tmp/{os.getpid()}.{n}', 'w') for n in range(50)]
for start in range(2000, 0, -2):
    for file in files: fcntl.lockf(file, fcntl.LOCK_EX, 1, start)
print('BREACH', flush=True)
time.sleep(9)
"""
"""Takes 50,000 locks in each of many processes: about 80 MiB of the kernel's."""
FEW_LOCKS = "import fcntl\nx = open('/tmp/x', 'w')\nfor n in range({}): fcntl.lockf(x, fcntl.LOCK_EX, 1, 2 * n)"
LEADER_GONE = """
import ctypes, os, threading, time
def go_on():
    while open(f'/proc/{os.getpid()}/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
    what()
    print('BREACH', flush=True)
    time.sleep(9)
def begin():
    threading.Thread(target=go_on).start()
    ctypes.CDLL(None).syscall((60, 93)[os.uname().machine == 'aarch64'], 0)
"""
"""A process whose first thread ends before another one goes on: /proc says nothing of it by its own number."""


async def test_record_locks_are_counted_because_each_takes_the_kernels_memory(inside: Sandbox) -> None:
    result = await run_program(inside, LOCKS)
    assert (result.end.reason, result.end.code, result.out) == ("memory", None, ""), result


async def test_record_locks_are_ended_at_their_limit_and_not_before(inside: Sandbox) -> None:
    waiting = "\nimport time\ntime.sleep({})\nprint('done')"
    most = inside.options.max_locks
    result = await run_program(inside, FEW_LOCKS.format(most) + waiting.format(1))
    assert (result.end.reason, result.out) == ("exited", "done\n"), result
    result = await run_program(inside, FEW_LOCKS.format(most + 1) + waiting.format(9))
    assert (result.end.reason, result.end.code) == ("memory", None), result


HELD_BY_OTHER_THREADS = {
    "memory": "def what():\n  global x\n  x = bytearray(b'x') * (300 << 20)",
    "mappings": (
        "libc = ctypes.CDLL(None)\nlibc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t] * 6\n"
        "libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]\n"
        "def what():\n  start = libc.mmap(0, 128 << 20, 1, 0x22, 2**64 - 1, 0)\n"
        "  for page in range(0, 24_000, 2): libc.mprotect(start + page * 4096, 4096, 3)"
    ),
    "record locks": (
        "import fcntl\ndef what():\n  global x\n  x = open(f'/tmp/{os.getpid()}', 'w')\n"
        "  for n in range(3000): fcntl.lockf(x, fcntl.LOCK_EX, 1, 2 * n)"
    ),
}


@pytest.mark.parametrize("held", HELD_BY_OTHER_THREADS)
async def test_no_process_hides_what_it_holds_when_its_first_thread_ends(inside: Sandbox, held: str) -> None:
    uncounted = Sandbox(inside.tool, inside.runtimes, inside.options)
    code = (
        f"{LEADER_GONE}\n{HELD_BY_OTHER_THREADS[held]}\nfor n in range(3):\n  if os.fork() == 0: begin()\ntime.sleep(9)"
    )
    result = await run_program(uncounted, code)
    assert (result.end.reason, result.end.code) == ("memory", None), result


async def test_a_thread_can_not_hide_locks_in_descriptors_of_its_own(inside: Sandbox) -> None:
    await assert_refused(inside, "call((56, 220)[os.uname().machine == 'aarch64'], 0x3D0B00, 0, 0, 0, 0)", EPERM)


async def test_locks_of_open_files_are_refused_because_they_can_not_be_counted(inside: Sandbox) -> None:
    for command in (37, 38):
        lock = (
            f"import fcntl, struct\nfcntl.fcntl(open('/tmp/x', 'w'), {command}, struct.pack('hhqqi4x', 1, 0, 0, 1, 0))"
        )
        await assert_refused(inside, lock, ENOLCK)
    result = await run_program(
        inside, "import fcntl\nfcntl.flock(open('/tmp/x', 'w'), fcntl.LOCK_EX)\nprint('one per file')"
    )
    assert result.out == "one per file\n"


async def test_record_locks_keep_processes_apart(inside: Sandbox) -> None:
    code = (
        "import fcntl, os, time\nx = open('/tmp/x', 'w')\nfcntl.lockf(x, fcntl.LOCK_EX)\nif os.fork() == 0:\n"
        "    try: fcntl.lockf(x, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except OSError as error: print(error.errno)\n"
        "    fcntl.lockf(x, fcntl.LOCK_EX)\n    print('mine')\nelse:\n"
        "    time.sleep(0.3)\n    fcntl.lockf(x, fcntl.LOCK_UN)\n    os.wait()"
    )
    assert (await run_program(inside, code)).out == f"{EAGAIN}\nmine\n"


async def test_sqlite_works_in_memory_and_on_files(inside: Sandbox) -> None:
    code = (
        "import sqlite3\nfor where in (':memory:', '/tmp/x.db'):\n"
        "    with sqlite3.connect(where) as db:\n"
        "        db.execute('CREATE TABLE t (a)')\n        db.execute('INSERT INTO t VALUES (7)')\n"
        "        print(*db.execute('SELECT a FROM t').fetchone())\n"
        "print(*db.execute('PRAGMA journal_mode=WAL').fetchone())\n"
        "db.execute('INSERT INTO t VALUES (8)')\ndb.commit()\n"
        "print(*sqlite3.connect('/tmp/x.db').execute('SELECT sum(a) FROM t').fetchone())"
    )
    result = await run_program(inside, code)
    assert result.out == "7\n7\nwal\n15\n", result


async def test_shared_memory_is_in_files_which_are_counted(inside: Sandbox) -> None:
    await assert_refused(inside, "import mmap\nmmap.mmap(-1, 1 << 20)", EPERM)
    await assert_refused(inside, "open('/dev/zero')", ENOENT)
    result = await run_program(
        inside,
        "from multiprocessing import shared_memory\nx = shared_memory.SharedMemory(create=True, size=1 << 20)\n"
        "x.buf[0] = 7\ny = shared_memory.SharedMemory(x.name)\nprint(y.buf[0])\nx.unlink()",
    )
    assert result.out == "7\n", result


async def test_disks_are_small(inside: Sandbox) -> None:
    for folder in ("/tmp", "/dev/shm"):
        await assert_refused(
            inside, f"for n in range(20):\n  open('{folder}/' + str(n), 'wb').write(bytes(10 << 20))", ENOSPC
        )
    await assert_refused(inside, "os.truncate(os.open('/tmp/x', os.O_CREAT | os.O_WRONLY), 1 << 40)", EFBIG)


async def test_nothing_of_the_machine_can_be_written(inside: Sandbox) -> None:
    result = await run_program(inside, "import sys, os\nprint(os.__file__, os.path.realpath(sys.executable))")
    folders = {str(Path(path).parent) for path in result.out.split()}
    for folder in (*folders, "/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/etc/alternatives", "/run", "/dev", "/proc"):
        await assert_refused(inside, f"open('{folder}/planted', 'w')", ENOENT if folder == "/proc" else EROFS)
        assert not (Path(folder) / "planted").exists()
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/etc/passwd", "/run/code.py", "/dev/mem"):
        in_proc = path.startswith("/proc")  # missing or not writable, depending on the machine
        await assert_refused(inside, f"open('{path}', 'w')", *((ENOENT, EACCES) if in_proc else (EROFS,)))
    result = await run_program(inside, "echo 1 > /dev/null; touch /tmp/mine && ls /tmp", "shell")
    assert result.out == "mine\n"
    assert (await run_program(inside, "ls -A /tmp /dev/shm", "shell")).out.split() == ["/dev/shm:", "/tmp:"]


@pytest.mark.parametrize(
    ("call", "errno"),
    [
        ("call((165, 40)[arm], b'none', b'/tmp', b'tmpfs', 0, 0)", EPERM),
        ("call((166, 39)[arm], b'/tmp', 0)", EPERM),
        ("call((161, 51)[arm], b'/tmp')", EPERM),
        ("call((272, 97)[arm], 0x10000000)", EPERM),
        ("call((272, 97)[arm], 0x20000)", EPERM),
        ("call((56, 220)[arm], 0x10000011, 0, 0, 0, 0)", EPERM),
        ("call(435, bytes(88), 88)", ENOSYS),
        ("call((308, 268)[arm], os.open('/proc/self/ns/user', 0), 0)", EPERM),
        ("call((321, 280)[arm], 0, bytes(64), 64)", EPERM),
        ("call((298, 241)[arm], bytes(128), 0, -1, -1, 0)", EPERM),
        ("call(425, 1, bytes(128))", ENOSYS),
        ("call((157, 167)[arm], 1, 0, 0, 0, 0)", EPERM),
        ("call((248, 217)[arm], b'user', b'x', b'x', 1, -3)", EPERM),
        ("call((169, 142)[arm], 0xfee1dead, 672274793, 0, 0)", EPERM),
        ("os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0))", EPERM),
        ("os.setuid(0)", EINVAL),
        ("os.sethostname = socket.sethostname('mine')", EPERM),
    ],
)
async def test_privileged_calls_are_refused(inside: Sandbox, call: str, errno: int) -> None:
    await assert_refused(inside, f"arm = os.uname().machine == 'aarch64'\n{call}", errno)


async def test_system_calls_of_another_architecture_kill_the_program(inside: Sandbox) -> None:
    result = await attempt(inside, "call(0x40000000 + 39) if os.uname().machine == 'x86_64' else os.abort()")
    assert result.end.reason == "signal", result


async def test_no_other_user_id_can_be_obtained(inside: Sandbox) -> None:
    result = await run_program(
        inside, "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status /proc/1/status", "shell"
    )
    uid, *lines = result.out.splitlines()
    assert uid == "65534"
    fields = [line.split(":", 1)[1].split() for line in lines]
    for name, value in ((field[0].rstrip(":"), field[1]) for field in fields):
        assert int(value, 16) == {"NoNewPrivs": 1, "Seccomp": 2}.get(name, 0), lines
    for become in ("su -c id", "mount -t tmpfs none /tmp", "unshare -Ur id", "sudo -n id", "newgrp root"):
        result = await run_program(inside, f"{become} </dev/null", "shell", seconds=3)
        assert result.end.code != 0, become
        assert "uid=0" not in result.out


async def test_daemons_end_with_the_program(inside: Sandbox) -> None:
    marker = f"97{uuid4().int % 10**12}"
    code = (
        "import os, subprocess\nfor n in range(3):\n  if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "      os.closerange(0, 100)\n"
        f"      os.execvp('sleep', ['sleep', '{marker}'])\n    os._exit(0)\n"
        f"subprocess.Popen(['setsid', 'sleep', '{marker}'])\nprint('gone')"
    )
    began = time.monotonic()
    result = await run_program(inside, code, seconds=30)
    assert result.out == "gone\n"
    assert result.end.code == 0
    assert time.monotonic() - began < 5
    assert not running(marker)


async def test_the_limits_apply_to_the_first_process_too(inside: Sandbox) -> None:
    # A program may write to that process's memory, but gains nothing: both have the same user, filter and limits.
    result = await run_program(inside, "cat /proc/1/status /proc/1/limits", "shell")
    assert "Uid:\t65534\t65534\t65534\t65534\n" in result.out
    assert "Seccomp:\t2\n" in result.out
    limits = {line[:26].strip(): line[26:].split()[:2] for line in result.out.splitlines() if line.startswith("Max ")}
    assert limits["Max processes"] == [str(inside.options.max_processes)] * 2
    assert limits["Max data size"] == [str(inside.options.memory)] * 2
    assert limits["Max open files"] == [str(inside.options.max_open_files)] * 2
