"""Answers requests of MCP servers for a model's text (`sampling/createMessage`)."""

import mcp_types as types
import structlog

from khala.domain.errors import KhalaError
from khala.domain.generation import MAX_STOP_CHARACTERS, MAX_STOPS, GenerationOptions
from khala.models.port import Prompt, PromptTurn
from khala.tools.mcp.active_calls import ActiveCalls
from khala.tools.mcp.call_meta import IDEMPOTENCY_KEY_FIELD
from khala.tools.port import ToolError

log = structlog.get_logger()

MAX_MESSAGES = 100
MAX_CHARACTERS = 200_000
"""Characters of all messages and the instructions."""
MAX_OUTPUT_TOKENS = 8_192
MAX_TEMPERATURE = 2.0


async def respond(
    server: str, calls: ActiveCalls, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult | types.ErrorData:
    """Call a model under the budget of the run to which the server's call belongs, or refuse with a reason."""
    key = (params.meta or {}).get(IDEMPOTENCY_KEY_FIELD)
    try:
        return await sample(calls, params, key if isinstance(key, str) else None)
    except ToolError as error:
        log.info("mcp_sampling_refused", server=server, reason=error.message)
        return types.ErrorData(code=types.INVALID_REQUEST, message=error.message)
    except KhalaError as error:
        return types.ErrorData(code=types.INTERNAL_ERROR, message=error.message)


async def sample(
    calls: ActiveCalls, params: types.CreateMessageRequestParams, key: str | None
) -> types.CreateMessageResult:
    """Call a model for the call with this key. Raises `ToolError` and `KhalaError`."""
    sampled = await calls.sample(key, _prompt(params))
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(text=sampled.text),
        model=sampled.model,
        stop_reason="maxTokens" if sampled.truncated else "endTurn",
    )


def _prompt(params: types.CreateMessageRequestParams) -> Prompt:
    """The prompt for the model. Raises `ToolError` for a request that Khala does not support."""
    if params.tools:
        raise ToolError("Khala does not support tools in sampling.")
    if not 1 <= len(params.messages) <= MAX_MESSAGES or params.messages[-1].role != "user":
        raise ToolError(f"Send 1 to {MAX_MESSAGES} messages, the last one of the user.")
    turns = tuple(PromptTurn(role=message.role, text=_text(message)) for message in params.messages)
    system = params.system_prompt or ""
    if len(system) + sum(len(turn.text) for turn in turns) > MAX_CHARACTERS:
        raise ToolError(f"The messages have more than {MAX_CHARACTERS:,} characters.")
    stop = params.stop_sequences or []
    if len(stop) > MAX_STOPS or not all(1 <= len(text) <= MAX_STOP_CHARACTERS for text in stop):
        raise ToolError(f"At most {MAX_STOPS} stop sequences of {MAX_STOP_CHARACTERS} characters are supported.")
    temperature = params.temperature
    if params.max_tokens < 1 or (temperature is not None and not 0 <= temperature <= MAX_TEMPERATURE):
        raise ToolError(f"maxTokens must be positive, and the temperature from 0 to {MAX_TEMPERATURE:g}.")
    return Prompt(
        system=system,
        turns=turns,
        max_output_tokens=min(params.max_tokens, MAX_OUTPUT_TOKENS),
        generation=GenerationOptions(temperature=temperature, stop=stop),
    )


def _text(message: types.SamplingMessage) -> str:
    blocks = message.content_as_list
    if not all(isinstance(block, types.TextContent) for block in blocks):
        raise ToolError("Khala supports only text in sampling.")
    return "\n".join(block.text for block in blocks if isinstance(block, types.TextContent))
