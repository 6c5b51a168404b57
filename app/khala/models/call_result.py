"""The end of a call: whether the answer is whole, what it calls, and what it used."""

from typing import Literal

from khala.domain.parts import TokenUsage
from khala.models import failures, token_counter
from khala.models.port import Completed, Prompt, ToolUse


def completed(
    prompt: Prompt,
    heard: str,
    *,
    provider: str,
    reason: str | None,
    uses: tuple[ToolUse, ...],
    counts: tuple[int, int],
) -> Completed:
    """The last event of a call.

    `heard`: all that was said. `reason`: why the stream ended, None if it merely did. `counts`: tokens of input and
    output; of a provider that told none they are estimated. Raises `ModelFailed` for an answer that isn't whole.
    """
    if reason not in ("stop", "length", "tool_call"):
        raise failures.unfinished(reason, provider, midstream=bool(heard))
    # A server may call what calls tools a stop; what the limit cut off is no call.
    called = () if reason == "length" else uses
    ended: Literal["length", "stop"] = "length" if reason == "length" else "stop"
    usage = TokenUsage(input_tokens=counts[0], output_tokens=counts[1])
    return Completed(
        usage=usage if any(counts) else token_counter.estimate_usage(prompt, heard, called),
        finish_reason="tool_calls" if called else ended,
        estimated=not any(counts),
        uses=called,
    )
