"""The sandbox: runs one program, passes its output on as it arrives, and enforces its limits."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import get_args

import structlog

from khala.domain.errors import PayloadTooLarge
from khala.tools.port import Sink, ToolError
from khala.tools.sandbox import cgroup, self_test
from khala.tools.sandbox.cgroup import MemoryGroup, MemoryGroupFactory
from khala.tools.sandbox.command import build
from khala.tools.sandbox.memory_usage import SandboxUsage
from khala.tools.sandbox.program import ExitReason, Language, Program, ProgramExit, SandboxOptions
from khala.tools.sandbox.runtimes import TEST_OUTPUT, TEST_PROGRAMS, LanguageRuntime, candidates
from khala.tools.sandbox.sandbox_process import SandboxProcess, SandboxSetupError, pump, start

MIN_CHECK_INTERVAL_SECONDS = 0.02
"""Time between two measurements of the memory; ten times a measurement's duration if that is longer."""
MAX_CHECK_INTERVAL_SECONDS = 0.1
"""Bounds the interval, so that a program can't delay the next measurement by making measurements slow."""
DRAIN_TIMEOUT_SECONDS = 10.0
"""Time for the sink to take the rest of the output when a program has ended."""
SIGNAL_CODES = range(129, 193)
CPU_LIMIT_CODE = 128 + 24
"""Exit code after SIGXCPU."""

log = structlog.get_logger()


class _LimitExceeded(Exception):
    """The program exceeds a limit."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Sandbox:
    """Runs programs in isolation, as described in `docs/sandbox.md`."""

    def __init__(
        self,
        tool: str,
        runtimes: Mapping[Language, LanguageRuntime],
        options: SandboxOptions,
        *,
        groups: MemoryGroupFactory | None = None,
    ) -> None:
        """`tool` is the path of bubblewrap. `groups` creates a control group for each sandbox, if that is possible."""
        self.tool = tool
        self.groups = groups
        self.runtimes = runtimes
        self.options = options
        self._slots = asyncio.Semaphore(options.max_sandboxes)
        # A thread of its own for all measurements, because calls in the default pool may wait for a slow name server.
        self._measure_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox")

    @classmethod
    async def find(cls, options: SandboxOptions | None = None) -> "Sandbox | None":
        """A sandbox with the languages that work here; None if `missing_requirement` reports a problem."""
        options = options or SandboxOptions()
        tool = self_test.find_tool()
        if tool is None or await asyncio.to_thread(self_test.missing_requirement) is not None:
            return None
        groups = await asyncio.to_thread(cgroup.find)
        trial = cls(tool, {}, options, groups=groups)
        languages: tuple[Language, ...] = get_args(Language)
        runtimes = {language: await trial._find_runtime(language) for language in languages}
        working = {language: runtime for language, runtime in runtimes.items() if runtime}
        return cls(tool, working, options, groups=groups)

    @property
    def languages(self) -> frozenset[Language]:
        """The languages that programs can be written in."""
        return frozenset(self.runtimes)

    async def run(self, program: Program, sink: Sink, runtime: LanguageRuntime | None = None) -> ProgramExit:
        """Run the program, by default with the runtime of its language. Its standard output goes to the sink.

        When this returns, raises or is cancelled, no process of the program is left. Raises the errors of the sink, and
        `ToolError` if no sandbox is available. If the sink raises `PayloadTooLarge`, the reason is `output`.
        """
        runtime = runtime or self.runtimes.get(program.language)
        if runtime is None:
            raise ToolError(f"This server can't run programs in {program.language}.", code="unavailable")
        async with self._reserve_slot():
            try:
                return await self._run(runtime, program, sink)
            except SandboxSetupError as error:
                log.error("sandbox_setup_failed", error=str(error))
                raise ToolError("The sandbox could not be set up.", code="unavailable") from error

    async def _run(self, runtime: LanguageRuntime, program: Program, sink: Sink) -> ProgramExit:
        async with start(build(self.tool, runtime, program, self.options), self._create_group()) as process:
            return await self._supervise(process, program, sink)

    def _create_group(self) -> MemoryGroup | None:
        """A new control group, if this machine supports them. Raises `SandboxSetupError` if none can be created."""
        if self.groups is None:
            return None
        try:
            return self.groups.create(self.options.memory + self.options.kernel, self.options.max_processes)
        except OSError as error:
            raise SandboxSetupError(f"No control group could be created: {error}") from error

    async def _find_runtime(self, language: Language) -> LanguageRuntime | None:
        """The first runtime of the language that works. If none works, logs the reasons."""
        failures: dict[str, str] = {}
        for runtime in candidates(language, self.options.memory):
            output = _MemorySink()
            try:
                end = await self._run(runtime, Program(language=language, code=TEST_PROGRAMS[language]), output)
                if output.data == TEST_OUTPUT:
                    return runtime
                failure = end.stderr.decode(errors="replace")
            except SandboxSetupError as error:
                failure = str(error)
            failures[runtime.command[0]] = failure.strip()
        if failures:
            log.warning("sandbox_language_missing", language=language, failures=failures)
        return None

    @asynccontextmanager
    async def _reserve_slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.options.wait_seconds):
                await self._slots.acquire()
        except TimeoutError as error:
            raise ToolError("Too many programs are running. Try again later.", code="unavailable") from error
        try:
            yield
        finally:
            self._slots.release()

    async def _supervise(self, process: SandboxProcess, program: Program, sink: Sink) -> ProgramExit:
        started = time.perf_counter()
        stderr = _Tail(self.options.stderr, self.options.max_stderr)
        code: int | None = None
        try:
            code = await self._wait(process, program.seconds, sink, stderr)
            if process.exceeded():
                raise _LimitExceeded("memory")
            reason = _reason(code)
        except _LimitExceeded as error:
            code, reason = None, error.reason
        return ProgramExit(code=code, reason=reason, seconds=time.perf_counter() - started, stderr=bytes(stderr.end))

    async def _wait(self, process: SandboxProcess, seconds: float, sink: Sink, stderr: "_Tail") -> int:
        """Wait for the exit code. Raises `_LimitExceeded` if the program must be ended, and the errors of the sink."""
        try:
            async with asyncio.timeout(seconds) as timeout, asyncio.TaskGroup() as tasks:
                tasks.create_task(pump(process.stdout, sink.write))
                tasks.create_task(pump(process.stderr, stderr.write))
                watch = tasks.create_task(self._watch(process))
                code = await process.ended()
                watch.cancel()
                timeout.reschedule(asyncio.get_running_loop().time() + DRAIN_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise _LimitExceeded("timeout") from error
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        return code

    async def _watch(self, process: SandboxProcess) -> None:
        """Measure the usage while the process lives. Raises `_LimitExceeded`."""
        loop = asyncio.get_running_loop()
        while True:
            started = time.perf_counter()
            usage = await loop.run_in_executor(
                self._measure_pool, process.usage, self.options.max_maps, self.options.max_locks
            )
            if usage is None:
                return
            if self._exceeds(usage) or process.exceeded():
                raise _LimitExceeded("memory")
            await asyncio.sleep(
                min(MAX_CHECK_INTERVAL_SECONDS, max(MIN_CHECK_INTERVAL_SECONDS, 10 * (time.perf_counter() - started)))
            )

    def _exceeds(self, usage: SandboxUsage) -> bool:
        limits = self.options
        return (
            usage.memory > limits.memory
            or usage.files > limits.max_files
            or usage.maps > limits.max_maps
            or usage.locks > limits.max_locks
        )


class _Tail:
    """Keeps the last `size` bytes of the output. Raises `_LimitExceeded` past `limit` bytes."""

    def __init__(self, size: int, limit: int) -> None:
        self.end = bytearray()
        self._size = size
        self._left = limit

    async def write(self, data: bytes) -> None:
        self._left -= len(data)
        self.end += data
        del self.end[: -self._size]
        if self._left < 0:
            raise _LimitExceeded("output")


def _reason(code: int) -> ExitReason:
    if code == CPU_LIMIT_CODE:
        return "timeout"
    return "signal" if code in SIGNAL_CODES else "exited"


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of one of the tasks. The other errors follow from it."""
    cause: BaseException = group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return _LimitExceeded("output") if isinstance(cause, PayloadTooLarge) else cause


class _MemorySink:
    """Keeps the output of a test program, up to one byte more than expected."""

    def __init__(self) -> None:
        self.data = b""

    async def write(self, data: bytes) -> None:
        """Add output."""
        self.data = (self.data + data)[: len(TEST_OUTPUT) + 1]
