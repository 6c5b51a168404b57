"""Answers to copy: a few runs with their parts, receipts and folded content, made by the application's own functions.

The filler gives every run of the database one of these answers, so stored content equals the fold of the stored parts.
"""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.decimals import format_optional
from khala.domain.fold import TextBlock, fold
from khala.domain.parts import Finish, PartData, Step, TextDelta, TokenUsage, ToolCall, ToolResult, encode, json_text

ANSWERS = 16
TEXT_CHARACTERS = 85
"""Characters of one text delta: 350 ms of an answer."""
QUESTION_CHARACTERS = 200
TEXT = (
    "The tide turned, as it always does, and the wind from the café at the harbour carried some news of ships over the"
    " water that nobody on shore had expected before winter, when every lamp is lit again."
)
NO_RUN = UUID(int=0)
"""Stands for the id of the run in the hashed text of a receipt."""


class ReceiptTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt to copy. `suffix` is the text that is hashed with the receipt, after the id of its run."""

    type: str
    tool_call_id: str | None
    data: str
    cost_usd: Decimal | None
    suffix: str


class AnswerTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A run to copy: JSON text of its question, content and finish (without a witness), its parts and receipts."""

    status: str
    question: str
    content: str
    finish: str
    parts: Sequence[tuple[str, str]]
    receipts: Sequence[ReceiptTemplate]


def answer_templates() -> list[AnswerTemplate]:
    """All answers: the same ones at each call."""
    chance = random.Random(7)
    return [_answer(number, chance) for number in range(ANSWERS)]


def _answer(number: int, chance: random.Random) -> AnswerTemplate:
    calls_tool = number % 4 == 3
    status, reason = {5: ("canceled", "canceled"), 10: ("error", "error")}.get(number, ("final", "stop"))
    usage = TokenUsage(input_tokens=900 + number, output_tokens=250 + number)
    texts: list[PartData] = [TextDelta(text=_text(chance, TEXT_CHARACTERS)) for _ in range(7 + number % 11)]
    finish = Finish(
        reason=reason, usage=usage, cost_usd="0.0042", model="gpt-5-mini", provider="openai",
        time_to_first_token_ms=612, total_ms=350 * len(texts),
    )  # fmt: skip
    begin: list[PartData] = [Step(step=1, max_steps=20, tool_count=4)]
    parts = [*begin, *(_tool_parts() if calls_tool else []), *texts, finish]
    return AnswerTemplate(
        status=status,
        question=json_text((TextBlock(text=_text(chance, QUESTION_CHARACTERS)),)),
        content=json_text(fold((), parts)),
        finish=json_text(finish),
        parts=[encode(part) for part in parts],
        receipts=_receipts(calls_tool=calls_tool, usage=usage),
    )


def _tool_parts() -> list[PartData]:
    return [
        ToolCall(tool_call_id="call-1", step=1, tool="fetch_url", args={"url": "https://example.com/harbour"}),
        ToolResult(tool_call_id="call-1", ok=True, summary="4 KB of text", duration_ms=184, output={"status": 200}),
        Step(step=2, max_steps=20, tool_count=4),
    ]


def _receipts(*, calls_tool: bool, usage: TokenUsage) -> list[ReceiptTemplate]:
    model = {
        "model": "gpt-5-mini", "provider": "openai", "outcome": "stop", "attempt": 1, "totalMs": 3500,
        "usage": {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens},
    }  # fmt: skip
    tool = {"tool": "fetch_url", "source": "builtin", "outcome": "ok", "size": 4096, "durationMs": 184}
    cost = Decimal("0.0042")
    if not calls_tool:
        return [_receipt(0, "model", None, model, cost)]
    return [
        _receipt(0, "model", None, model, cost),
        _receipt(1, "tool", "call-1", tool, None),
        _receipt(2, "model", None, model, cost),
    ]


def _receipt(
    seq: int, kind: str, tool_call_id: str | None, facts: dict[str, Any], cost: Decimal | None
) -> ReceiptTemplate:
    """`suffix` continues the text that `khala.domain.receipts.chained_hash` hashes; `khala verify` checks the hash."""
    fields = [NO_RUN, seq, kind, tool_call_id, facts, format_optional(cost)]
    _, _, suffix = msgspec.json.encode(fields, order="deterministic").decode().partition(str(NO_RUN))
    return ReceiptTemplate(type=kind, tool_call_id=tool_call_id, data=json_text(facts), cost_usd=cost, suffix=suffix)


def _text(chance: random.Random, characters: int) -> str:
    words, text = TEXT.split(), ""
    while len(text) < characters:
        text += f"{chance.choice(words)} "
    return text
