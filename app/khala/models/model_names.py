"""Names of models: parses `provider:name`, and chooses the default model."""

from collections.abc import Mapping, Sequence

import msgspec

from khala.models.provider_registry import PROVIDERS, ProviderAccess


class BadModelError(ValueError):
    """A model's name cannot be used. The message says what the operator should write instead."""


class ModelRef(msgspec.Struct, frozen=True):
    """A model by name. `str()` gives the form that `parse` reads."""

    provider: str
    name: str

    def __str__(self) -> str:
        return self.provider if self.provider == DEMO_NAME else f"{self.provider}:{self.name}"


DEMO_NAME = "demo"
DEMO = ModelRef(DEMO_NAME, DEMO_NAME)
"""The scripted model that ships with Khala and needs no provider."""


def parse(text: str) -> ModelRef:
    """Parse `provider:name`, or `demo`. Raises `BadModelError`."""
    provider, _, name = (part.strip() for part in text.partition(":"))
    if provider == DEMO_NAME:
        return DEMO
    if provider not in PROVIDERS:
        choices = ", ".join(f"{known}:NAME" for known in PROVIDERS)
        raise BadModelError(f"Unknown model {text!r}: write {choices} or demo.")
    if not name:
        example = PROVIDERS[provider].default_model
        raise BadModelError(f"No model name in {text!r}: write for example {provider}:{example}.")
    return ModelRef(provider, name)


def parse_list(text: str) -> tuple[ModelRef, ...]:
    """Parse names separated by commas. Skips empty and repeated ones. Raises `BadModelError`."""
    return tuple(dict.fromkeys(parse(name) for name in text.split(",") if name.strip()))


def default(access: Mapping[str, ProviderAccess]) -> ModelRef:
    """The model to use if none is named: the default model of the first provider with a key, or the demo model.

    An address without a key selects no model, because the models of a local server have names of their own.
    """
    for name, spec in PROVIDERS.items():
        if name in access and access[name].key:
            return ModelRef(name, spec.default_model)
    return DEMO


def chain(
    model: ModelRef | None, fallbacks: Sequence[ModelRef], access: Mapping[str, ProviderAccess]
) -> tuple[ModelRef, ...]:
    """The models to try, in order and each once: the named or default one, then the fallbacks."""
    return tuple(dict.fromkeys((model or default(access), *fallbacks)))
