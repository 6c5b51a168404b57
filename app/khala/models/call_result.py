"""Builds the last event of a model call: the finish reason, the tool calls and the usage."""

from typing import Literal

from khala.domain.parts import TokenLogprob, TokenUsage
from khala.models import failures, token_counter
from khala.models.port import Completed, Prompt, ToolUse


def build_completed(
    prompt: Prompt,
    output: str,
    *,
    provider: str,
    finish_reason: str | None,
    uses: tuple[ToolUse, ...],
    token_counts: tuple[int, int],
    token_details: tuple[int, int] = (0, 0),
    logprobs: tuple[TokenLogprob, ...] = (),
) -> Completed:
    """The last event of a call. Raises `ModelFailed` for an incomplete answer.

    `output`: the whole text and reasoning of the answer. `finish_reason`: None if the stream ended without one.
    `token_counts`: tokens of input and output; if both are 0, the provider reported no usage and it is estimated.
    `token_details`: cached tokens of the input, and tokens of reasoning of the output.
    """
    if finish_reason not in ("stop", "length", "tool_call"):
        raise failures.from_finish_reason(finish_reason, provider, midstream=bool(output))
    # Some servers finish tool calls with "stop". At the token limit the last call may be truncated, so none is made.
    complete_uses = () if finish_reason == "length" else uses
    ended: Literal["length", "stop"] = "length" if finish_reason == "length" else "stop"
    usage = TokenUsage(input_tokens=token_counts[0], output_tokens=token_counts[1])
    return Completed(
        usage=usage if any(token_counts) else token_counter.estimate_usage(prompt, output, complete_uses),
        finish_reason="tool_calls" if complete_uses else ended,
        estimated=not any(token_counts),
        uses=complete_uses,
        cached_tokens=token_details[0],
        reasoning_tokens=token_details[1],
        logprobs=logprobs,
    )
