"""Names of models: `provider:name` read, checked, and chosen where nobody chose."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

Provider: TypeAlias = Literal["openai", "anthropic", "google", "demo"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)

KEYS: dict[Provider, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
"""Where each provider's own clients look for a key, in the order in which a default is sought."""

DEFAULTS: dict[Provider, str] = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-terra",
    "google": "gemini-3.8-flash",
    "demo": "demo",
}


class BadModel(ValueError):
    """A model was named in a way that can't be used; the message tells the operator what to write instead."""


class ModelRef(msgspec.Struct, frozen=True):
    """A model by name. `str()` gives the form that `parse` reads."""

    provider: Provider
    name: str

    def __str__(self) -> str:
        return self.provider if self.provider == "demo" else f"{self.provider}:{self.name}"


DEMO = ModelRef("demo", "demo")


def parse(text: str) -> ModelRef:
    """Read `provider:name`, or `demo`. Raises `BadModel`."""
    before, _, name = (piece.strip() for piece in text.partition(":"))
    if before == "demo":
        return DEMO
    provider = next((known for known in PROVIDERS if known == before), None)
    if provider is None:
        raise BadModel(f"Unknown model {text!r}: write openai:NAME, anthropic:NAME, google:NAME or demo.")
    if not name:
        raise BadModel(f"No model name in {text!r}: write for example {provider}:{DEFAULTS[provider]}.")
    return ModelRef(provider, name)


def parse_list(text: str) -> tuple[ModelRef, ...]:
    """Read references separated by commas; empty ones are skipped and repeated ones kept once. Raises `BadModel`."""
    return tuple(dict.fromkeys(parse(piece) for piece in text.split(",") if piece.strip()))


def default(env: Mapping[str, str]) -> ModelRef:
    """The model to use: KHALA_MODEL, else a current one of the first provider with a key, else the demo.

    OPENAI_BASE_URL alone chooses nothing: a local server's models have names of their own, so KHALA_MODEL must say.
    Raises `BadModel`.
    """
    if chosen := env.get("KHALA_MODEL", "").strip():
        return parse(chosen)
    keyed = (provider for provider, names in KEYS.items() if any(env.get(name) for name in names))
    provider: Provider = next(keyed, "demo")
    return ModelRef(provider, DEFAULTS[provider])


def chain(env: Mapping[str, str]) -> tuple[ModelRef, ...]:
    """The models to try, in order: the default, then those of KHALA_FALLBACK_MODELS. Raises `BadModel`."""
    return tuple(dict.fromkeys((default(env), *parse_list(env.get("KHALA_FALLBACK_MODELS", "")))))
