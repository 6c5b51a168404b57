"""The sandbox: one program, its output as it comes, and how it ended."""

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
from khala.tools.sandbox.runtimes import ANSWER, TRIALS, LanguageRuntime, candidates
from khala.tools.sandbox.sandbox_process import SandboxProcess, SandboxSetupError, opened, pump

TICK = 0.02
"""Seconds between looks at the memory, if looking takes less than a tenth of that."""
MAX_TICK = 0.1
"""At most so many seconds: a program must not be able to put off the next look by making looks slow."""
DRAIN_SECONDS = 10.0
"""For what a program wrote before it ended, and the sink has yet to take."""
SIGNALS = range(129, 193)
CPU_TIME_IS_UP = 128 + 24

log = structlog.get_logger()


class _Over(Exception):
    """A limit is passed."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Sandbox:
    """Runs programs apart from everything. How: `docs/sandbox.md`."""

    def __init__(
        self,
        tool: str,
        runtimes: Mapping[Language, LanguageRuntime],
        options: SandboxOptions,
        *,
        groups: MemoryGroupFactory | None = None,
    ) -> None:
        """`groups`: where each sandbox gets a control group, if there are any here."""
        self.tool = tool
        self.groups = groups
        self.runtimes = runtimes
        self.options = options
        self._places = asyncio.Semaphore(options.at_once)
        # One thread for all looks at memory: they never wait behind somebody's slow name server.
        self._looks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox")

    @classmethod
    async def find(cls, options: SandboxOptions | None = None) -> "Sandbox | None":
        """A sandbox with the languages that work here; None where this machine can't isolate: see `missing()`."""
        options = options or SandboxOptions()
        tool = self_test.found()
        if tool is None or await asyncio.to_thread(self_test.missing) is not None:
            return None
        groups = await asyncio.to_thread(cgroup.find)
        trying = cls(tool, {}, options, groups=groups)
        languages: tuple[Language, ...] = get_args(Language)
        found = {language: await trying._fit(language) for language in languages}
        working = {language: runtime for language, runtime in found.items() if runtime}
        return cls(tool, working, options, groups=groups)

    @property
    def languages(self) -> frozenset[Language]:
        """What programs can be written in."""
        return frozenset(self.runtimes)

    async def run(self, program: Program, sink: Sink) -> ProgramExit:
        """Run it; what it writes to its standard output goes to the sink as it comes.

        When this returns, raises or is cancelled, no process of it is left. Raises what the sink raises, except
        `PayloadTooLarge`, which ends the program; `ToolError` where no sandbox is to be had.
        """
        runtime = self.runtimes.get(program.language)
        if runtime is None:
            raise ToolError(f"Programs in {program.language} can't be run here.", code="unavailable")
        async with self._place():
            try:
                return await self._run(runtime, program, sink)
            except SandboxSetupError as error:
                log.error("sandbox_broken", why=str(error))
                raise ToolError("The sandbox could not be set up.", code="unavailable") from error

    async def _run(self, runtime: LanguageRuntime, program: Program, sink: Sink) -> ProgramExit:
        async with opened(build(self.tool, runtime, program, self.options), self._group()) as process:
            return await self._attended(process, program, sink)

    def _group(self) -> MemoryGroup | None:
        """A new control group. Raises `SandboxSetupError`: where groups bound sandboxes, none runs without."""
        if self.groups is None:
            return None
        try:
            return self.groups.make(self.options.memory + self.options.kernel, self.options.processes)
        except OSError as error:
            raise SandboxSetupError(f"No control group could be made: {error}") from error

    async def _fit(self, language: Language) -> LanguageRuntime | None:
        """The first runtime of the language that works. Logs why the others don't only where none does."""
        unfit: dict[str, str] = {}
        for runtime in candidates(language, self.options.memory):
            answer = _Answer()
            try:
                end = await self._run(runtime, Program(language=language, code=TRIALS[language]), answer)
                if answer.said == ANSWER:
                    return runtime
                why = end.stderr.decode(errors="replace")
            except SandboxSetupError as error:
                why = str(error)
            unfit[runtime.command[0]] = why.strip()
        if unfit:
            log.warning("sandbox_language_missing", language=language, unfit=unfit)
        return None

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.options.patience):
                await self._places.acquire()
        except TimeoutError as error:
            raise ToolError("Too many programs are running. Try again later.", code="unavailable") from error
        try:
            yield
        finally:
            self._places.release()

    async def _attended(self, process: SandboxProcess, program: Program, sink: Sink) -> ProgramExit:
        started = time.perf_counter()
        stderr = _Tail(self.options.stderr, self.options.stderr_most)
        code: int | None = None
        try:
            code = await self._ended(process, program.seconds, sink, stderr)
            if process.exceeded():
                raise _Over("memory")
            reason = _reason(code)
        except _Over as over:
            code, reason = None, over.reason
        return ProgramExit(code=code, reason=reason, seconds=time.perf_counter() - started, stderr=bytes(stderr.end))

    async def _ended(self, process: SandboxProcess, seconds: float, sink: Sink, stderr: "_Tail") -> int:
        """The exit code. Raises `_Over` where the program has to be ended, and what the sink raises."""
        try:
            async with asyncio.timeout(seconds) as limit, asyncio.TaskGroup() as tasks:
                tasks.create_task(pump(process.stdout, sink.write))
                tasks.create_task(pump(process.stderr, stderr.write))
                watch = tasks.create_task(self._watch(process))
                code = await process.ended()
                watch.cancel()
                limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
        except TimeoutError as error:
            raise _Over("timeout") from error
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        return code

    async def _watch(self, process: SandboxProcess) -> None:
        """Looks at what the tree holds, for as long as it lives. Raises `_Over`."""
        loop = asyncio.get_running_loop()
        while True:
            began = time.perf_counter()
            usage = await loop.run_in_executor(self._looks, process.usage, self.options.maps, self.options.max_locks)
            if usage is None:
                return
            if self._over(usage) or process.exceeded():
                raise _Over("memory")
            await asyncio.sleep(min(MAX_TICK, max(TICK, 10 * (time.perf_counter() - began))))

    def _over(self, usage: SandboxUsage) -> bool:
        most = self.options
        return (
            usage.memory > most.memory
            or usage.files > most.files
            or usage.maps > most.maps
            or usage.locks > most.max_locks
        )


class _Tail:
    """Keeps the end of what is written; raises `_Over` past the most that may be."""

    def __init__(self, size: int, most: int) -> None:
        self.end = bytearray()
        self._size = size
        self._left = most

    async def write(self, data: bytes) -> None:
        self._left -= len(data)
        self.end += data
        del self.end[: -self._size]
        if self._left < 0:
            raise _Over("output")


def _reason(code: int) -> ExitReason:
    if code == CPU_TIME_IS_UP:
        return "timeout"
    return "signal" if code in SIGNALS else "exited"


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first thing that went wrong in one of the tasks; what the rest came to follows from it."""
    cause: BaseException = group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return _Over("output") if isinstance(cause, PayloadTooLarge) else cause


class _Answer:
    """Takes what a trial prints."""

    def __init__(self) -> None:
        self.said = b""

    async def write(self, data: bytes) -> None:
        self.said = (self.said + data)[: len(ANSWER) + 1]
