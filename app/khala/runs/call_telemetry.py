"""Metrics and trace spans of a run's model calls and tool calls. They are recorded when a call has ended."""

from decimal import Decimal

from opentelemetry.trace import SpanKind

from khala.domain.parts import TokenUsage
from khala.runs.usage_tally import ModelCall
from khala.signals import metrics, traces

SUCCESSFUL_OUTCOMES = frozenset({"stop", "length", "tool_calls", "canceled"})
"""Outcomes of a model call that are not errors."""


def record_model_call(call: ModelCall, outcome: str, seconds: float, usage: TokenUsage, usd: Decimal | None) -> None:
    """Record a model call that has ended, with its duration in seconds and its cost in USD."""
    provider, model = call.model.provider, metrics.model(call.model.name)
    metrics.MODEL_CALLS.labels(provider, model, metrics.outcome(outcome)).inc()
    metrics.MODEL_CALL.labels(provider, model).observe(seconds)
    if call.first is not None:
        metrics.MODEL_FIRST_TOKEN.labels(provider, model).observe(call.first - call.began)
    metrics.MODEL_TOKENS.labels(provider, model, "input").inc(usage.input_tokens)
    metrics.MODEL_TOKENS.labels(provider, model, "output").inc(usage.output_tokens)
    metrics.MODEL_COST.labels(provider, model).inc(float(usd or 0))
    if traces.enabled():
        attributes: dict[str, str | int | float] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": call.model.name,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
        if call.first is not None:
            attributes["khala.time_to_first_token_seconds"] = call.first - call.began
        error = None if outcome in SUCCESSFUL_OUTCOMES else outcome
        traces.record(f"chat {call.model.name}", seconds, attributes, kind=SpanKind.CLIENT, error=error)


def record_tool_call(name: str, source: str | None, call_id: str, code: str | None, milliseconds: int) -> None:
    """Record a tool call that has ended. `code` is None for a success; `source` is None if no tool was executed."""
    tool = _label(name, source)
    metrics.TOOL_CALLS.labels(tool, metrics.outcome(code or "ok")).inc()
    if source is None:
        return
    metrics.TOOL_CALL.labels(tool).observe(milliseconds / 1000)
    if traces.enabled():
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
        traces.record(f"execute_tool {name}", milliseconds / 1000, attributes, error=code)


def _label(name: str, source: str | None) -> str:
    """The tool's label in metrics: the name of a built-in tool, and for other tools only their source."""
    match source:
        case "builtin":
            return name
        case "user" | "command":
            return source
        case None:
            return "none"
        case _:
            return f"mcp:{source}"
