"""Which generation options the models of each provider have, so that a request for others is refused at once."""

from collections.abc import Iterator

import msgspec

from khala.domain.generation import GenerationOptions
from khala.models.anthropic import abilities
from khala.models.google import abilities as google_abilities
from khala.models.model_names import DEMO_NAME, ModelRef
from khala.models.provider_registry import label

TUNING = ("seed", "presence_penalty", "frequency_penalty", "reasoning_effort", "temperature", "top_p", "user")
"""Options that may have no effect: an answer without them is still an answer to the request."""


class UnsupportedOption(msgspec.Struct, frozen=True):
    """An option that a model lacks, by its field, and a full sentence that says so."""

    field: str
    message: str


def unsupported(ref: ModelRef, options: GenerationOptions) -> UnsupportedOption | None:
    """The first option without which the answer of this model would not be what was requested."""
    return next(_unsupported(ref, options), None)


def without_effect(ref: ModelRef, options: GenerationOptions) -> list[str]:
    """The fields of requested options that this model does not have, and that change no answer's meaning."""
    requested = [name for name in TUNING if getattr(options, name) is not None]
    if ref.provider == DEMO_NAME:
        return requested
    if ref.provider == "anthropic":
        kept = ("user", "reasoning_effort") if abilities.has_effort(ref.name) else ("user",)
        return [name for name in requested if name not in kept]
    if ref.provider == "google":
        lacking = ("user",) if google_abilities.thinks(ref.name) else ("user", "reasoning_effort")
        return [name for name in requested if name in lacking]
    return []


def _unsupported(ref: ModelRef, options: GenerationOptions) -> Iterator[UnsupportedOption]:
    name = label(ref.provider)
    if options.logprobs and ref.provider in (DEMO_NAME, "anthropic"):
        yield UnsupportedOption("logprobs", f"{name}'s models have no log probabilities.")
    if ref.provider == "anthropic" and any(not text.strip() for text in options.stop):
        yield UnsupportedOption("stop", f"{name}'s models take no stop sequence of white space.")
