"""A worker: executes the runs of remote agents that it names, with functions of the program."""

import asyncio
import contextlib
import logging
import signal
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from khala_client.errors import InvalidSetting, KhalaError
from khala_client.http_core import ClientConfig, HttpCore
from khala_client.run_context import RunContext
from khala_client.worker_parts import AgentError, ApprovalDenied, Released, ReplayDiverged
from khala_client.worker_wire import Claimed, ClaimedRun, Heartbeat

__all__ = ["AgentError", "ApprovalDenied", "ReplayDiverged", "RunContext", "Worker"]

log = logging.getLogger("khala_client.worker")

WAIT_SECONDS = 20
"""Time that a claim waits on the server."""
FIRST_WAIT_SECONDS = 1
"""The same before the worker knows that it is connected, so that it can say so soon."""
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 5.0
REPEAT_SECONDS = 60.0
"""Time after which a connection that still fails is logged again."""
HEARTBEATS_PER_LEASE = 4
DEFAULT_LEASE_SECONDS = 10.0

AgentFunction: TypeAlias = Callable[[RunContext], Awaitable[None]]


class _Agent:
    """A function that executes the runs of an agent."""

    def __init__(self, function: AgentFunction, *, replay: bool) -> None:
        self.function = function
        self.replay = replay


class _ConnectionLog:
    """Logs once when the worker is connected, and when its connection fails, with the reason and the next try."""

    def __init__(self, server: str) -> None:
        self.is_open = False
        self._server = server
        self._delay = 0.0
        self._logged_at = float("-inf")

    def record_success(self, agents: list[str]) -> None:
        """Record an answer of the server."""
        if not self.is_open:
            log.info("connected to %s, for the agents: %s", self._server, ", ".join(agents))
        self.is_open, self._delay, self._logged_at = True, 0.0, float("-inf")

    def record_failure(self, error: KhalaError) -> float:
        """Record a failure; returns the seconds until the next try."""
        self.is_open = False
        self._delay = min(max(RETRY_SECONDS, 2 * self._delay), MAX_RETRY_SECONDS)
        if time.monotonic() - self._logged_at >= REPEAT_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("no connection to %s: %s Next try in %g s.", self._server, error, self._delay)
        return self._delay


class Worker:
    """Claims runs of its agents from a server, and executes up to `concurrency` at once.

    `token` is a worker's token: `khala workers token NAME --agents …`. Register functions with `agent`, then
    call `serve`, or await `run` in a program of your own.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        concurrency: int = 10,
        flush_seconds: float = 0.35,
        grace_seconds: float = 20.0,
        hold_seconds: float = 60.0,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """Make a worker. After `stop`, runs have `grace_seconds` to end; then they are given back.

        A run waits `hold_seconds` for an approval; then it is given back until there is a decision.
        """
        if concurrency < 1:
            raise ValueError("A worker executes at least one run at once.")
        self._config = ClientConfig(server=server, verify=verify)
        self._token = token
        self._concurrency = concurrency
        self._flush_seconds = flush_seconds
        self._grace_seconds = grace_seconds
        self._hold_seconds = hold_seconds
        self._agents: dict[str, _Agent] = {}
        self._active: dict[RunContext, asyncio.Task[None]] = {}
        self._free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._lease_seconds = DEFAULT_LEASE_SECONDS
        self._connection = _ConnectionLog(server)

    def agent(self, name: str, *, replay: bool = True) -> Callable[[AgentFunction], AgentFunction]:
        """Register a function for the runs of this agent. `replay`: see `RunContext`."""

        def register(function: AgentFunction) -> AgentFunction:
            self._agents[name] = _Agent(function, replay=replay)
            return function

        return register

    def serve(self) -> None:
        """Work until SIGTERM or SIGINT.

        Ends the program with a line and status 1 if the token is malformed or the server refuses the worker.

        What happens to the connection is logged by `khala_client.worker`: to standard error, if the program has not
        configured logging.
        """
        if not logging.getLogger().handlers and not log.handlers:
            log.addHandler(logging.StreamHandler())
            log.setLevel(logging.INFO)
        try:
            asyncio.run(self._serve())
        except InvalidSetting as error:
            raise SystemExit(f"The worker cannot start. {error.message}") from None
        except KhalaError as error:
            raise SystemExit(f"The worker stops: {self._config.server} refuses it. {error.message}") from None

    async def run(self) -> None:
        """Work until `stop` is called. Raises `KhalaError` if the server refuses the token or an agent."""
        if not self._agents:
            raise ValueError("Register an agent first.")
        core = HttpCore(self._config, self._token)
        heartbeats = asyncio.create_task(self._send_heartbeats(core))
        try:
            await self._claim_runs(core)
            await self._drain()
        finally:
            for task in self._active.values():
                task.cancel()
            heartbeats.cancel()
            await asyncio.gather(heartbeats, *self._active.values(), return_exceptions=True)
            await core.aclose()

    def stop(self) -> None:
        """Claim no more runs, and let `run` return when the active ones have ended or are given back."""
        self._stopping.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.run()

    async def _claim_runs(self, core: HttpCore) -> None:
        claim_id = uuid.uuid4()
        while not self._stopping.is_set():
            free = self._concurrency - len(self._active)
            if free <= 0:
                self._free.clear()
                await self._first(self._free.wait())
                continue
            body = {
                "claimId": str(claim_id),
                "agents": sorted(self._agents),
                "maxRuns": min(free, 50),
                "waitSeconds": WAIT_SECONDS if self._connection.is_open else FIRST_WAIT_SECONDS,
            }
            # Not `idempotent`, which would repeat the request without a word: this loop repeats it, by the same id.
            claim = core.request("POST", "/api/executor/claim", Claimed, body=body, timeout=WAIT_SECONDS + 15)
            try:
                claimed = await self._first(claim)
            except KhalaError as error:
                if not error.is_transient and error.status != 429:
                    raise
                await self._first(asyncio.sleep(self._connection.record_failure(error)))
                continue
            if claimed is not None:
                self._connection.record_success(sorted(self._agents))
                for run in claimed.runs:
                    self._begin(core, run)
                claim_id = uuid.uuid4()

    async def _first(self, awaitable: "Awaitable[Claimed | bool | None]") -> Claimed | None:
        """The result, None if the worker is stopped before it is there."""
        task = asyncio.ensure_future(awaitable)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            result = task.result() if task.done() else None
            return result if isinstance(result, Claimed) else None
        finally:
            stopping.cancel()
            task.cancel()

    def _begin(self, core: HttpCore, claimed: ClaimedRun) -> None:
        agent = self._agents[claimed.agent.name]
        context = RunContext(core, claimed, replay=agent.replay, flush_seconds=self._flush_seconds)
        context.hold_seconds = self._hold_seconds
        self._lease_seconds = claimed.lease_seconds
        self._active[context] = asyncio.create_task(self._execute(agent, context))

    async def _execute(self, agent: _Agent, context: RunContext) -> None:
        flushing = asyncio.create_task(context.sender.flush_loop())
        try:
            if context.cancelled:  # Before it was claimed, so that no heartbeat says so.
                await self._leave(context)
            else:
                await self._answer(agent, context, flushing)
        except KhalaError as error:
            log.warning("run %s cannot go on: %s", context.run_id, error)
            if not context.lost:
                await self._give_up(context)
        except asyncio.CancelledError:
            if not context.lost:
                with contextlib.suppress(KhalaError):
                    await self._leave(context)
        except Exception:
            # Caught, because an error of one run must not end the others. The lease lapses, and another worker goes on.
            log.exception("run %s crashed", context.run_id)
        finally:
            flushing.cancel()
            self._active.pop(context, None)
            self._free.set()

    async def _answer(self, agent: _Agent, context: RunContext, flushing: "asyncio.Task[None]") -> None:
        """Run the function, and end the run by its outcome."""
        function = asyncio.ensure_future(agent.function(context))
        try:
            await asyncio.wait((function, flushing), return_when=asyncio.FIRST_COMPLETED)
            if not function.done():
                flushing.result()  # Raises the error for which nothing can be written any more.
            await function
        except (Released, BaseExceptionGroup):
            if not context.released:
                raise
        except AgentError as error:
            await context.sender.finish("failed", error=error)
        except (KhalaError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("the agent %s failed", context.agent.name)
            await context.sender.finish(
                "failed", error=AgentError("The agent failed. Please try again.", code="agent_failed")
            )
        else:
            await context.sender.finish("completed")
        finally:
            if not function.done():
                function.cancel()
                await asyncio.gather(function, return_exceptions=True)

    async def _give_up(self, context: RunContext) -> None:
        """End a run whose parts the server refuses."""
        context.sender.drop_pending()
        with contextlib.suppress(KhalaError):
            await context.sender.finish(
                "failed", error=AgentError("The agent failed. Please try again.", code="agent_failed")
            )

    async def _leave(self, context: RunContext) -> None:
        """End a run that was cancelled, or give it back, because the worker stops."""
        if context.cancelled:
            await context.sender.finish("cancelled", reason="cancelled")
        else:
            await context.sender.release()

    async def _send_heartbeats(self, core: HttpCore) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / HEARTBEATS_PER_LEASE)
            active = list(self._active)
            if not active:
                continue
            body = {"runs": [{"runId": str(run.run_id), "epoch": run.sender.epoch} for run in active]}
            try:
                beat = await core.request("POST", "/api/executor/heartbeat", Heartbeat, body=body)
            except KhalaError as error:
                log.warning("heartbeat failed: %s", error)
                continue
            self._lease_seconds = beat.lease_seconds
            states = {(state.run_id, state.epoch): state for state in beat.runs}
            for run in active:
                state = states.get((run.run_id, run.sender.epoch))
                task = self._active.get(run)
                if state is None or task is None or run.sender.ending:
                    continue
                if not state.held:
                    run.lost = True
                    task.cancel()
                elif state.cancelled and not run.cancelled:
                    run.cancelled = True
                    task.cancel()
                run.receive(state.approvals)

    async def _drain(self) -> None:
        """Wait for the active runs to end, and give back those that do not within the grace period."""
        if self._active:
            await asyncio.wait(list(self._active.values()), timeout=self._grace_seconds)
        tasks = list(self._active.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
