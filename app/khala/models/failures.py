"""Every way in which a provider call fails, as `ModelFailed`: from what servers say and HTTP errors to our codes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from khala.models import provider_registry
from khala.models.port import ModelFailed, Prompt


@dataclass(frozen=True)
class FailureKind:
    """A row of `port.ModelFailed`."""

    code: str
    message: str
    retryable: bool = False


RATE_LIMITED = FailureKind("rate_limited", "{provider} is receiving too many requests.", retryable=True)
QUOTA = FailureKind("refused", "The quota at {provider} is used up.")
OVERLOADED = FailureKind("overloaded", "{provider} is overloaded.", retryable=True)
UNAVAILABLE = FailureKind("unavailable", "{provider} is out of order.", retryable=True)
TIMEOUT = FailureKind("timeout", "{provider} stayed silent for too long.", retryable=True)
UNREACHABLE = FailureKind("connection_lost", "{provider} could not be reached.", retryable=True)
LOST = FailureKind("connection_lost", "The connection to {provider} was lost.", retryable=True)
TOO_LONG = FailureKind("context_exceeded", "The conversation is longer than this model can take.")
KEY = FailureKind("refused", "{provider} did not accept the key.")
UNKNOWN_MODEL = FailureKind("refused", "{provider} does not know this model.")
REFUSED = FailureKind("refused", "{provider} refused the request.")
FILTERED = FailureKind("refused", "{provider} declined to answer this.")
INVALID = FailureKind("invalid_response", "{provider} sent an answer that can't be read.", retryable=True)

FailureTable: TypeAlias = Sequence[tuple[type[BaseException], FailureKind]]
"""What the errors of a library come to. The first match counts: subclasses stand before their bases."""

_STATUSES = {
    **dict.fromkeys((401, 403), KEY),
    402: QUOTA,
    404: UNKNOWN_MODEL,
    408: TIMEOUT,
    413: TOO_LONG,
    429: RATE_LIMITED,
    529: OVERLOADED,
}
_NAMES = {
    "insufficient_quota": QUOTA,
    "billing_hard_limit_reached": QUOTA,
    "credit_balance_exhausted": QUOTA,
    "organization_spend_limit_exceeded": QUOTA,
    "organization_usage_limit_exceeded": QUOTA,
    "project_spend_limit_exceeded": QUOTA,
    "context_length_exceeded": TOO_LONG,
    "server_is_overloaded": OVERLOADED,
    "model_not_found": UNKNOWN_MODEL,
    "invalid_api_key": KEY,
}
"""Codes and types of errors that say more than their status."""
_NAMES_WITHOUT_STATUS = {
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "too_many_requests"), RATE_LIMITED),
    **dict.fromkeys(("service_unavailable", "service_unavailable_error", "server_error"), UNAVAILABLE),
}
"""Those of errors inside a stream, which come after the status of success."""
_OVERFLOWS = ("maximum context length", "reduce the length of the messages", "exceeds the available context size")
"""Words of servers that have no code for a prompt that is too long."""
_OVERLOADS = ("overloaded", "over capacity")


class ProviderRefusalError(Exception):
    """A server that speaks OpenAI's protocol said no: by the status of its response, or in the midst of a stream."""

    def __init__(
        self, message: str, *, names: Sequence[str] = (), status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{status or 'in the stream'}: {', '.join(names)}: {message}")
        self.message = message
        self.names = names
        """Its code and type, where it has some."""
        self.status = status
        self.retry_after = retry_after

    @classmethod
    def of(cls, error: Any, *, status: int | None = None, retry_after: float | None = None) -> "ProviderRefusalError":
        """Read an error as servers write it: an object, or a text. Gateways write the status as its code."""
        fields = error if isinstance(error, dict) else {"message": error}
        given = (fields.get("code"), fields.get("type"))
        names = [str(name) for name in given if isinstance(name, str | int)]
        within = next((int(name) for name in names if re.fullmatch("[45][0-9][0-9]", name)), None)
        message = str(fields.get("message") or "")
        return cls(message, names=names, status=status or within, retry_after=retry_after)

    @property
    def kind(self) -> FailureKind:
        """The kind of failure, by the error's names first, then by its words, then by its status."""
        if self.status in (408, 413):
            return _STATUSES[self.status]
        words = self.message.lower()
        named = next((_NAMES[name] for name in self.names if name in _NAMES), None)
        if named is not None:
            return named
        if any(phrase in words for phrase in _OVERFLOWS):
            return TOO_LONG
        if any(phrase in name.lower() for name in self.names for phrase in _OVERLOADS):
            return OVERLOADED
        if self.status is None:
            return next(
                (_NAMES_WITHOUT_STATUS[name] for name in self.names if name in _NAMES_WITHOUT_STATUS), UNAVAILABLE
            )
        return _by_status(self.status, words)


def _by_status(status: int, words: str) -> FailureKind:
    if status == 503 and any(phrase in words for phrase in _OVERLOADS):
        return OVERLOADED
    if status in _STATUSES:
        return _STATUSES[status]
    if status < 400:
        return INVALID
    return REFUSED if status < 500 else UNAVAILABLE


def of(
    error: Exception, provider: str, *, kinds: FailureTable = (), midstream: bool, asked: Sequence[str] = ()
) -> ModelFailed:
    """The failure to raise from `error`: a refusal, or one of the `kinds`.

    `midstream`: a part of the answer had come. `asked`: what `demands` says.
    """
    if isinstance(error, ProviderRefusalError):
        return failed(error.kind, provider, midstream=midstream, retry_after=error.retry_after, asked=asked)
    kind = next((kind for sort, kind in kinds if isinstance(error, sort)), INVALID)
    return failed(kind, provider, midstream=midstream)


def unfinished(reason: str | None, provider: str, *, midstream: bool) -> ModelFailed:
    """The failure of a stream which ended in good order, but whose finish reason tells that the answer isn't whole.

    None is a stream that merely stopped, as a proxy or a dying server leaves it.
    """
    kind = {None: LOST, "content_filter": FILTERED}.get(reason, INVALID)
    return failed(kind, provider, midstream=midstream)


def failed(
    kind: FailureKind, provider: str, *, midstream: bool, retry_after: float | None = None, asked: Sequence[str] = ()
) -> ModelFailed:
    """The failure of this kind. A refusal without a clear cause may be for what was `asked`."""
    if kind is REFUSED and asked:
        kind = replace(kind, message=f"{kind.message} Perhaps this model can't {' or '.join(asked)}.")
    return ModelFailed(
        kind.code,
        kind.message.format(provider=provider_registry.label(provider)),
        retryable=kind.retryable,
        retry_after=None if retry_after is None else max(0.0, retry_after),
        midstream=midstream,
    )


def demands(prompt: Prompt) -> list[str]:
    """The abilities that this prompt needs and some models lack, as in "read these files"."""
    files = any(turn.files for turn in prompt.turns)
    return [*(["read these files"] if files else []), *(["use tools"] if prompt.tools else [])]
