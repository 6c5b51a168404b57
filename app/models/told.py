"""A prompt in the library's terms: what a provider is told of the conversation, its files and its tools."""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from app.domain.tools import Spec
from app.models import files
from app.models.port import File, Outcome, Prompt, ToolUse, Turn

GO_ON = (
    "A technical fault cut off your last message. Go on from exactly where it ends, in the midst of a word if need be. "
    "Repeat nothing, and don't mention the interruption."
)
"""Asked after what was said before: not every provider lets a model go on with its own last message."""
NO_OUTCOME = "The call was interrupted; whether it did anything is not known."
NOTHING = "(nothing)"
"""Told instead of an empty text, which some providers refuse."""


def parameters(prompt: Prompt) -> ModelRequestParameters:
    """The tools that the model may call. Not in providers' strict modes, which don't know every schema.

    Where it may call none, those that it has called are named all the same: Anthropic wants to know what was used.
    """
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=spec.name,
                description=spec.description,
                parameters_json_schema=spec.parameters,
                strict=False,
            )
            for spec in prompt.tools or _used(prompt)
        ]
    )


def settings(prompt: Prompt) -> ModelSettings:
    """The limit of the answer's length, and whether tools may be called."""
    chosen = ModelSettings()
    if prompt.max_output_tokens:
        chosen["max_tokens"] = prompt.max_output_tokens
    if not prompt.tools and _used(prompt):
        chosen["tool_choice"] = "none"
    return chosen


def _used(prompt: Prompt) -> list[Spec]:
    names = dict.fromkeys(_name(use.name) for turn in prompt.turns for use in turn.uses)
    return [Spec(name=name, description="Not to be called any more.", parameters={"type": "object"}) for name in names]


def messages(prompt: Prompt) -> Iterator[ModelMessage]:
    """The conversation. Runs of one voice become one message: some providers insist on turns.

    Providers without system messages amid a conversation get them joined to the instructions.
    """
    opening = (Turn(role="system", text=prompt.system),) if prompt.system else ()
    ending = (Turn(role="assistant", text=prompt.said), Turn(role="user", text=GO_ON)) if prompt.said.strip() else ()
    pairs = _Pairs()
    for assistant, turns in groupby((*opening, *prompt.turns, *ending), key=lambda turn: turn.role == "assistant"):
        if assistant:
            if said := [part for turn in turns for part in _said(turn, pairs)]:
                yield ModelResponse(parts=said)
        elif asked := _asked(turns, pairs):
            yield ModelRequest(parts=asked)


class _Pairs:
    """Pairs outcomes with their uses, by ids of their own: not every provider takes what another gave.

    An outcome whose use was left behind with older turns is left out, and a use without an outcome gets one: providers
    refuse the one without the other.
    """

    def __init__(self) -> None:
        self._count = 0
        self._open: defaultdict[str, deque[tuple[str, str]]] = defaultdict(deque)

    def use(self, use: ToolUse) -> ToolCallPart:
        self._count += 1
        call_id, name = f"call_{self._count}", _name(use.name)
        self._open[use.id].append((call_id, name))
        return ToolCallPart(tool_name=name, args=use.args, tool_call_id=call_id)

    def outcome(self, outcome: Outcome) -> ToolReturnPart | None:
        if not self._open[outcome.id]:
            return None
        call_id, name = self._open[outcome.id].popleft()
        return _return(call_id, name, outcome.text, ok=outcome.ok)

    def left(self) -> list[ToolReturnPart]:
        calls = [call for calls in self._open.values() for call in calls]
        self._open.clear()
        return [_return(call_id, name, NO_OUTCOME, ok=False) for call_id, name in calls]


def _return(call_id: str, name: str, text: str, *, ok: bool) -> ToolReturnPart:
    """An outcome; the library marks a failed one as each provider has it."""
    told = text if text.strip() else NOTHING
    return ToolReturnPart(tool_name=name, content=told, tool_call_id=call_id, outcome="success" if ok else "failed")


def _said(turn: Turn, pairs: _Pairs) -> Iterator[TextPart | ToolCallPart]:
    if turn.text.strip():  # models begin with a blank line before they call tools, and some refuse to be told of it
        yield TextPart(turn.text)
    yield from map(pairs.use, turn.uses)


def _asked(turns: Iterable[Turn], pairs: _Pairs) -> list[ModelRequestPart]:
    """What came between two answers: outcomes first, as every provider wants them right after the uses."""
    returned: list[ModelRequestPart] = []
    asked: list[ModelRequestPart] = []
    for turn in turns:
        if turn.role == "tool":
            returned += filter(None, map(pairs.outcome, turn.outcomes))
        else:
            asked.append(SystemPromptPart(turn.text) if turn.role == "system" else _user(turn))
    return [*returned, *pairs.left(), *asked]


def _user(turn: Turn) -> UserPromptPart:
    if not turn.files:
        return UserPromptPart(turn.text)
    text = [turn.text] if turn.text.strip() else []
    return UserPromptPart([*(content for file in turn.files for content in _file(file)), *text])


def _file(file: File) -> Iterator[UserContent]:
    """A file, after its name; what models can't see is text."""
    if files.sort(file) in ("image", "pdf"):
        yield files.head(file)
        yield BinaryContent(file.data, media_type=files.bare(file))
    else:
        yield files.told(file)


def _name(name: str) -> str:
    """The name of a tool as providers take it: models invent names, too."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
