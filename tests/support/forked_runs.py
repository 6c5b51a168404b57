"""Has a forked worker fork the processes of its isolated runs, too: each start of one takes two seconds of a core.

The worker forks one process before it begins, and that process, which has no threads, forks the others. They are
children of the worker, as if it had started them, and `khala execute-run` does all that it does elsewhere.
`tests/system/test_isolation.py` tests processes that are started as an operator's are.
"""

import asyncio
import ctypes
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from khala.runs.isolation import IsolatedExecutor

VARIABLE = "KHALA_TEST_FORKED_RUNS"
"""Environment variable of workers that fork these processes."""
PR_SET_CHILD_SUBREAPER = 36
MAX_MESSAGE_BYTES = 1 << 18
"""Of the environment of a process."""


class ForkedRun:
    """The process of an isolated run, with what Khala uses of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self.stdin.close()
        self._ended.set()

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        self._signal(9)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(15)

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


def install() -> None:
    """Have this process fork the processes of its isolated runs from now on. It may have no threads yet."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _fork_on_request(theirs)
    theirs.close()

    from khala.runs import isolation

    async def start(executor: "IsolatedExecutor") -> Any:
        return await _start(ours, executor._environment)

    isolation.IsolatedExecutor._start = start  # type: ignore[assignment,method-assign]  # the purpose of this file


async def _start(requests: socket.socket, environment: Mapping[str, str]) -> ForkedRun:
    loop = asyncio.get_running_loop()
    (input_end, stdin), (stdout, output_end) = os.pipe(), os.pipe()
    try:
        socket.send_fds(requests, [json.dumps(dict(environment)).encode()], [input_end, output_end])
    finally:
        os.close(input_end)
        os.close(output_end)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdout, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(stdin, "wb", 0)
    )
    pid = int(await asyncio.to_thread(requests.recv, 64))
    return ForkedRun(pid, asyncio.StreamWriter(transport, protocol, None, loop), reader)


def _fork_on_request(requests: socket.socket) -> NoReturn:
    """Fork a process for each request, until the worker ends."""
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            _fork_run(requests, json.loads(message), descriptors)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_run(requests: socket.socket, environment: Mapping[str, str], descriptors: list[int]) -> NoReturn:
    """Fork the process and end. The worker is the nearest ancestor that adopts orphans."""
    between = os.getpid()
    pid = os.fork()
    if pid:
        requests.send(str(pid).encode())
        os._exit(0)
    # The signal at the end of the parent must not come from the process between.
    while os.getppid() == between:
        time.sleep(0.001)
    requests.close()
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.setsid()
    _execute(environment)


def _execute(environment: Mapping[str, str]) -> NoReturn:
    from khala.cli import EXECUTE_RUN, main

    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["khala", EXECUTE_RUN]
    code: Any = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
