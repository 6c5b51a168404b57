"""Tool calls end with a result, with a failure, or by their cancellation."""

import asyncio
from typing import Any

import pytest
import structlog

from khala.domain import ids
from khala.domain.errors import InvalidInput, KhalaError, NotFound, PayloadTooLarge, Unavailable
from khala.domain.tools import ToolPermission, ToolSpec
from khala.tools import invocation as invoking
from khala.tools.port import CallContext, CallResult, ToolError
from tests.support.tool_calls import call, guest, user


class Probe:
    """A tool whose behaviour the test sets."""

    def __init__(
        self, behaviour: Any, *, seconds: float = 5.0, permissions: frozenset[ToolPermission] = frozenset()
    ) -> None:
        self.what = behaviour
        self.cleaned = False
        self.spec = ToolSpec(
            name="probe",
            description="",
            parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
            timeout=seconds,
            permissions=permissions,
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        try:
            if isinstance(self.what, BaseException):
                raise self.what
            await self.what()
        finally:
            self.cleaned = True
        return CallResult(output="done")


async def nothing() -> None:
    pass


async def for_ever() -> None:
    await asyncio.Event().wait()


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            if not ENOUGH.is_set():
                continue
            raise


ENOUGH = asyncio.Event()
WHO = user(ids.new())


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ToolError("No pylon.", code="not_found"), "No pylon.", "not_found"),
        (NotFound("No such file."), "No such file.", "not_found"),
        (InvalidInput("Not so."), "Not so.", "bad_arguments"),
        (PayloadTooLarge("Too much."), "Too much.", "too_large"),
        (Unavailable("Away."), "Away.", "unavailable"),
        (KhalaError("Hm."), "Hm.", "unavailable"),
        (ValueError("secret"), "The tool failed with an internal error.", "failed"),
        (asyncio.CancelledError(), "The tool failed with an internal error.", "failed"),
        (ExceptionGroup("secrets", [ValueError("secret")]), "The tool failed with an internal error.", "failed"),
    ],
)
async def test_a_failure_is_a_result_with_its_message_and_code(error: BaseException, message: str, code: str) -> None:
    with structlog.testing.capture_logs() as logs:
        result = await call(Probe(error), WHO)
    assert (result.ok, result.text, result.result.code) == (False, message, code)
    assert [line["event"] for line in logs] == (
        ["tool_crashed"] if message == "The tool failed with an internal error." else []
    )


async def test_a_call_that_takes_too_long_is_cancelled_and_reported() -> None:
    probe = Probe(for_ever, seconds=0.05)
    result = await call(probe, WHO)
    assert (result.text, result.result.code, probe.cleaned) == ("Timed out after 0.05 s.", "timeout", True)


async def test_a_tool_that_ignores_its_cancellation_blocks_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoking, "CLEANUP_TIMEOUT_SECONDS", 0.05)
    with structlog.testing.capture_logs() as logs:
        result = await call(Probe(stubborn, seconds=0.05), WHO)
    assert result.result.code == "timeout"
    assert [line["event"] for line in logs] == ["tool_not_stopped"]
    ENOUGH.set()
    for task in [*invoking._abandoned]:
        task.cancel()
        await asyncio.wait({task})
    assert not invoking._abandoned


async def test_the_callers_cancellation_is_propagated_and_ends_the_tool() -> None:
    probe = Probe(for_ever)
    task = asyncio.create_task(call(probe, WHO))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert probe.cleaned


async def test_a_tool_does_not_run_with_invalid_arguments_or_missing_permissions() -> None:
    probe = Probe(nothing, permissions=frozenset({"network", "code", "fs"}))
    result = await call(probe, guest(ids.new()))
    assert result.text == "probe needs the permission code, network, which this caller does not have."
    assert (await call(probe, WHO, n="1")).result.code == "bad_arguments"
    assert not probe.cleaned
    assert (await call(probe, WHO, n=1)).ok
