"""Maps the errors of providers and of HTTP to `ModelFailed` and its codes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from khala.models import provider_registry
from khala.models.port import ModelFailed, Prompt


@dataclass(frozen=True)
class FailureKind:
    """A kind of `port.ModelFailed`: its code, its message, whether a retry may succeed, and its cause."""

    code: str
    message: str
    retryable: bool = False
    cause: str | None = None


RATE_LIMITED = FailureKind("rate_limited", "{provider} is receiving too many requests.", retryable=True)
QUOTA = FailureKind("refused", "The quota at {provider} is used up.", cause="quota_exhausted")
OVERLOADED = FailureKind("overloaded", "{provider} is overloaded.", retryable=True)
UNAVAILABLE = FailureKind("unavailable", "{provider} is unavailable.", retryable=True)
TIMEOUT = FailureKind("timeout", "{provider} did not respond in time.", retryable=True)
UNREACHABLE = FailureKind("connection_lost", "{provider} could not be reached.", retryable=True)
UNTRUSTED = FailureKind(
    "connection_lost", "The TLS certificate of {provider} has expired, or is not trusted.", retryable=True
)
CONNECTION_LOST = FailureKind("connection_lost", "The connection to {provider} was lost.", retryable=True)
TOO_LONG = FailureKind("context_exceeded", "The conversation is too long for this model.")
INVALID_KEY = FailureKind("refused", "{provider} rejected the API key.", cause="invalid_key")
UNKNOWN_MODEL = FailureKind("refused", "{provider} does not know this model.", cause="unknown_model")
REFUSED = FailureKind("refused", "{provider} refused the request.")
CONTENT_FILTERED = FailureKind("refused", "{provider} declined to answer this.", cause="content_filtered")
INVALID_RESPONSE = FailureKind("invalid_response", "{provider} sent an invalid response.", retryable=True)

FailureTable: TypeAlias = Sequence[tuple[type[BaseException], FailureKind]]
"""The kinds of a library's exceptions. The first match counts, so subclasses come before their bases."""

_BY_STATUS = {
    **dict.fromkeys((401, 403), INVALID_KEY),
    402: QUOTA,
    404: UNKNOWN_MODEL,
    408: TIMEOUT,
    413: TOO_LONG,
    429: RATE_LIMITED,
    529: OVERLOADED,
}
_BY_CODE = {
    "insufficient_quota": QUOTA,
    "billing_hard_limit_reached": QUOTA,
    "credit_balance_exhausted": QUOTA,
    "organization_spend_limit_exceeded": QUOTA,
    "organization_usage_limit_exceeded": QUOTA,
    "project_spend_limit_exceeded": QUOTA,
    "context_length_exceeded": TOO_LONG,
    "server_is_overloaded": OVERLOADED,
    "model_not_found": UNKNOWN_MODEL,
    "invalid_api_key": INVALID_KEY,
}
"""Codes and types of errors that are more specific than the status."""
_BY_CODE_IN_STREAM = {
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "too_many_requests"), RATE_LIMITED),
    **dict.fromkeys(("service_unavailable", "service_unavailable_error", "server_error"), UNAVAILABLE),
}
"""Codes and types of errors inside a stream, which arrive after a status of success."""
OPTION = re.compile(
    r"(response_format|tools|tool_choice|parallel_tool_calls|temperature|top_p|seed|presence_penalty|frequency_penalty"
    r"|stop|reasoning_effort|logprobs|top_logprobs|user|max_tokens|max_completion_tokens)\b"
)
"""Parameters of OpenAI's protocol that callers set, and parts of them. The message about one is for the caller."""
MAX_SHOWN_CHARACTERS = 500
"""Characters of a provider's message about an option."""
_OVERFLOWS = (
    "maximum context length",
    "reduce the length of the messages",
    "exceeds the available context size",
    "prompt is too long",
    "input token count",
    "number of tokens allowed",
)
"""Messages of servers that have no code for a prompt that is too long."""
_EXHAUSTED = ("credit balance is too low",)
"""Messages of servers that have no code for a used-up quota."""
_OVERLOADS = ("overloaded", "over capacity")


class ProviderRefusalError(Exception):
    """A provider sent an error, as a response or inside a stream."""

    def __init__(
        self,
        message: str,
        *,
        codes: Sequence[str] = (),
        status: int | None = None,
        retry_after: float | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(f"{status or 'in the stream'}: {', '.join(codes)}: {message}")
        self.message = message
        self.codes = codes
        """The error's code and type, as far as the server sent them."""
        self.status = status
        self.retry_after = retry_after
        self.option = option
        """The option of the request that the server refuses, in the server's words."""

    @classmethod
    def parse(
        cls, error: Any, *, status: int | None = None, retry_after: float | None = None
    ) -> "ProviderRefusalError":
        """Parse an error as a server sends it: an object or a text. Some gateways send the status as the code."""
        fields = error if isinstance(error, dict) else {"message": error}
        values = (fields.get("code"), fields.get("type"))
        codes = [str(value) for value in values if isinstance(value, str | int)]
        status_code = next((int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", code)), None)
        message = str(fields.get("message") or "")
        param = fields.get("param")
        option = param if isinstance(param, str) and OPTION.match(param) else None
        return cls(message, codes=codes, status=status or status_code, retry_after=retry_after, option=option)

    @property
    def kind(self) -> FailureKind:
        """The kind of failure, by the error's codes first, then by its message, then by its status."""
        if self.status in (408, 413):
            return _BY_STATUS[self.status]
        message = self.message.lower()
        by_code = next((_BY_CODE[code] for code in self.codes if code in _BY_CODE), None)
        if by_code is not None:
            return by_code
        if any(phrase in message for phrase in _OVERFLOWS):
            return TOO_LONG
        if any(phrase in message for phrase in _EXHAUSTED):
            return QUOTA
        if any(phrase in code.lower() for code in self.codes for phrase in _OVERLOADS):
            return OVERLOADED
        if self.status in (400, 422) and self.option is not None:
            return _option_refused(self.message or self.option)
        if self.status is None:
            return next((_BY_CODE_IN_STREAM[code] for code in self.codes if code in _BY_CODE_IN_STREAM), UNAVAILABLE)
        return _kind_of_status(self.status, message)


def _option_refused(message: str) -> FailureKind:
    shown = message[:MAX_SHOWN_CHARACTERS].replace("{", "{{").replace("}", "}}")
    return FailureKind("option_refused", f"{{provider}} refused an option of the request: {shown}")


def _kind_of_status(status: int, message: str) -> FailureKind:
    if status == 503 and any(phrase in message for phrase in _OVERLOADS):
        return OVERLOADED
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status < 400:
        return INVALID_RESPONSE
    return REFUSED if status < 500 else UNAVAILABLE


def from_exception(
    error: Exception, provider: str, *, kinds: FailureTable = (), midstream: bool, abilities: Sequence[str] = ()
) -> ModelFailed:
    """The failure for an exception: a `ProviderRefusalError`, or one of `kinds`.

    `midstream`: a part of the answer has arrived. `abilities`: the result of `required_abilities`.
    """
    if isinstance(error, ProviderRefusalError):
        return from_kind(error.kind, provider, midstream=midstream, retry_after=error.retry_after, abilities=abilities)
    kind = next((kind for error_type, kind in kinds if isinstance(error, error_type)), INVALID_RESPONSE)
    return from_kind(kind, provider, midstream=midstream)


def from_finish_reason(reason: str | None, provider: str, *, midstream: bool) -> ModelFailed:
    """The failure of a stream that ended without an error, but with a finish reason of an incomplete answer.

    None means that the stream ended without a finish reason, as after the crash of a proxy or a server.
    """
    kind = {None: CONNECTION_LOST, "content_filter": CONTENT_FILTERED}.get(reason, INVALID_RESPONSE)
    return from_kind(kind, provider, midstream=midstream)


def from_kind(
    kind: FailureKind,
    provider: str,
    *,
    midstream: bool,
    retry_after: float | None = None,
    abilities: Sequence[str] = (),
) -> ModelFailed:
    """The failure of this kind. For a refusal without a clear cause, the message names the required `abilities`."""
    if kind is REFUSED and abilities:
        kind = replace(kind, message=f"{kind.message} This model may not be able to {' or '.join(abilities)}.")
    return ModelFailed(
        kind.code,
        kind.message.format(provider=provider_registry.label(provider)),
        cause=kind.cause,
        retryable=kind.retryable,
        retry_after=None if retry_after is None else max(0.0, retry_after),
        midstream=midstream,
    )


def required_abilities(prompt: Prompt) -> list[str]:
    """The abilities that this prompt requires and some models lack, such as "read these files"."""
    files = any(turn.files for turn in prompt.turns)
    return [*(["read these files"] if files else []), *(["use tools"] if prompt.tools else [])]
