"""What is told of a run's calls of models and tools when they have ended: metrics, and spans in the run's trace."""

from decimal import Decimal

from opentelemetry.trace import SpanKind

from khala.domain.parts import TokenUsage
from khala.runs.usage_tally import ModelCall
from khala.signals import metrics, traces

FINE = frozenset({"stop", "length", "tool_calls", "canceled"})
"""Outcomes of a model call that nobody has failed in."""


def model_called(call: ModelCall, outcome: str, seconds: float, usage: TokenUsage, usd: Decimal | None) -> None:
    """A model call has ended, after so many seconds."""
    provider, model = call.model.provider, metrics.model(call.model.name)
    metrics.MODEL_CALLS.labels(provider, model, metrics.outcome(outcome)).inc()
    metrics.MODEL_CALL.labels(provider, model).observe(seconds)
    if call.first is not None:
        metrics.MODEL_FIRST_TOKEN.labels(provider, model).observe(call.first - call.began)
    metrics.MODEL_TOKENS.labels(provider, model, "input").inc(usage.input_tokens)
    metrics.MODEL_TOKENS.labels(provider, model, "output").inc(usage.output_tokens)
    metrics.MODEL_COST.labels(provider, model).inc(float(usd or 0))
    if traces.enabled():
        facts: dict[str, str | int | float] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": call.model.name,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
        if call.first is not None:
            facts["khala.time_to_first_token_seconds"] = call.first - call.began
        error = None if outcome in FINE else outcome
        traces.record(f"chat {call.model.name}", seconds, facts, kind=SpanKind.CLIENT, error=error)


def tool_called(name: str, source: str | None, call_id: str, code: str | None, milliseconds: int) -> None:
    """A tool call has ended, well if without a `code`; where nothing was called, there is no `source`."""
    tool = _label(name, source)
    metrics.TOOL_CALLS.labels(tool, metrics.outcome(code or "ok")).inc()
    if source is None:
        return
    metrics.TOOL_CALL.labels(tool).observe(milliseconds / 1000)
    if traces.enabled():
        facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
        traces.record(f"execute_tool {name}", milliseconds / 1000, facts, error=code)


def _label(name: str, source: str | None) -> str:
    """What a metric calls the tool: only the built-in ones by name, others by whose they are."""
    match source:
        case "builtin":
            return name
        case "user":
            return "user"
        case None:
            return "none"
        case _:
            return f"mcp:{source}"
