"""The options of a run. What is None is left out, and has the server's default."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from khala_client.wire import WireStruct


class RunBudget(WireStruct, frozen=True, kw_only=True):
    """The limits of one run, unless the operator's are lower."""

    usd: Decimal | None = None
    tokens: int | None = None
    seconds: float | None = None
    tool_calls: int | None = None


class Function(WireStruct, frozen=True, kw_only=True):
    """A tool that the caller executes: a run that calls it ends with reason `tool_calls`.

    `parameters` is the JSON Schema of an object.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(WireStruct, frozen=True, kw_only=True):
    """The format of the answer: any text, any JSON object, or a JSON value that fits `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: Mapping[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(WireStruct, frozen=True, kw_only=True):
    """Whether the model may or must call tools, and which of those that are offered."""

    mode: Literal["auto", "none", "required"]
    tools: Sequence[str] | None = None


class RunOptions(WireStruct, frozen=True, kw_only=True):
    """The options of a run, as the protocol describes them under `RunOptions`.

    `if_busy` decides about a send while the thread has a run that has not ended: `reject` raises `Conflict`, `queue`
    waits, `interrupt` cancels the runs before it. With `autopilot` the run takes up to `max_steps` steps.
    """

    agent: str | None = None
    model: str | None = None
    if_busy: Literal["reject", "queue", "interrupt"] | None = None
    budget: RunBudget | None = None
    autopilot: bool | None = None
    max_steps: int | None = None
    tools: Sequence[str] | None = None
    functions: Sequence[Function] | None = None
    max_output_tokens: int | None = None
    context_tokens: int | None = None
    instructions: str | None = None
    response_format: ResponseFormat | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: Sequence[str] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    user: str | None = None
    metadata: Mapping[str, str] | None = None
    server_instructions: bool | None = None
    context_overflow: Literal["shorten", "error"] | None = None

    @property
    def checks_format(self) -> bool:
        """Whether the server checks the answer, and has the model write it again if it does not fit."""
        return self.response_format is not None and self.response_format.type != "text"
