"""The operations of an agent in Python, in the form of tools, and its reports of usage."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, TypeAlias

import structlog

from khala.domain.errors import BudgetExhausted, KhalaError
from khala.domain.parts import TokenUsage
from khala.domain.tools import ToolSpec
from khala.runs.budget_meter import BudgetMeter
from khala.sdk.errors import StepError
from khala.sdk.tool import APP_SOURCE
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.tools.port import CallContext, CallResult, ToolError

log = structlog.get_logger()

STEP_TIMEOUT_SECONDS = 86_400.0
USAGE_OUTSIDE = "Report the usage of a model in the step that calls it, so that it is reported once."
UNNAMED = "app"
"""The provider of a reported call that names none."""

StepFunction: TypeAlias = Callable[[dict[str, Any], CallContext], Awaitable[CallResult]]

_call_id: ContextVar[str | None] = ContextVar("call_id", default=None)
"""The operation in which this task is."""


class StepTool:
    """One operation of an agent, in the form of a tool. It may be repeated if its outcome is unknown."""

    def __init__(self, name: str, function: StepFunction) -> None:
        self.spec = ToolSpec(
            name=name,
            description="",
            parameters={"type": "object"},
            timeout=STEP_TIMEOUT_SECONDS,
            idempotent=True,
            source=APP_SOURCE,
        )
        self._function = function

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Carry out the operation. Raises `ToolError`."""
        token = _call_id.set(call.id)
        try:
            return await self._function(args, call)
        except (ToolError, KhalaError, LeaseLost):
            raise
        except StepError as error:
            raise ToolError(str(error)) from error
        except Exception as error:
            log.exception("agent_step_failed", step=self.spec.name)
            # The message of an exception may have secrets. It is only logged.
            raise ToolError(f"The step {self.spec.name} failed: {type(error).__name__}.") from error
        finally:
            _call_id.reset(token)


class UsageReports:
    """The model calls that an agent reports. Each gets a receipt, and counts to the budgets of the run."""

    def __init__(self, buffer: RunBuffer, meter: BudgetMeter) -> None:
        self._buffer = buffer
        self._meter = meter
        self._unchecked = False

    def add(
        self, provider: str | None, model: str | None, usage: TokenUsage, cost_usd: str | None, *, milliseconds: int
    ) -> None:
        """Count a call."""
        provider, model = provider or UNNAMED, model or "unknown"
        price = None if cost_usd is None else Decimal(cost_usd)
        price = self._meter.tally.add_reported(provider, model, usage, price)
        receipt = {
            "provider": provider,
            "model": model,
            "attempt": 1,
            "outcome": "completed",
            "usage": usage,
            "estimated": False,
            "timeToFirstTokenMs": None,
            "totalMs": milliseconds,
        }
        self._buffer.append_receipt("model", receipt, price, _call_id.get())
        self._unchecked = True

    async def check(self) -> None:
        """Check the budgets, if a call was reported since the last check. Raises `StepError`."""
        if not self._unchecked:
            return
        self._unchecked = False
        try:
            await self._meter.check()
        except BudgetExhausted as error:
            raise StepError(error.message) from error


def is_in_step() -> bool:
    """Whether this task is in an operation of an agent."""
    return _call_id.get() is not None
