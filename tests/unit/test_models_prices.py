"""Costs and context windows from the data that ships with the program."""

from decimal import Decimal

import pytest

from khala.domain.parts import TokenUsage
from khala.models.prices import context_window, cost, per_million
from khala.models.provider_registry import PROVIDERS

MILLION = TokenUsage(input_tokens=1_000_000, output_tokens=1_000_000)


def test_a_known_model_has_its_list_price() -> None:
    assert cost("openai", "gpt-4o-mini", MILLION) == Decimal("0.75")
    assert cost("openai", "gpt-4o-mini", TokenUsage()) == Decimal(0)


def test_the_price_of_a_million_tokens_equals_that_of_calls_with_them() -> None:
    assert per_million("openai", "gpt-4o-mini") == (Decimal("0.15"), Decimal("0.6"))
    assert per_million("demo", "demo") == (Decimal(0), Decimal(0))
    assert per_million("openai", "llama3:8b") == (None, None)


def test_a_price_that_rises_for_long_prompts_is_listed_for_short_ones() -> None:
    long = cost("google", "gemini-2.5-pro", TokenUsage(input_tokens=1_000_000))
    assert long is not None
    assert per_million("google", "gemini-2.5-pro")[0] == long / 2


def test_the_demo_model_is_free() -> None:
    assert cost("demo", "demo", MILLION) == Decimal(0)


@pytest.mark.parametrize(("provider", "model"), [("openai", "llama3:8b"), ("nobody", "x"), ("openai", ""), ("", "")])
def test_an_unknown_model_has_no_price_and_no_window(provider: str, model: str) -> None:
    assert cost(provider, model, MILLION) is None
    assert context_window(provider, model) is None


@pytest.mark.parametrize("usage", [TokenUsage(input_tokens=-1), TokenUsage(output_tokens=10**15)])
def test_an_inconsistent_usage_raises_no_error(usage: TokenUsage) -> None:
    cost("openai", "gpt-4o-mini", usage)


def test_every_default_model_has_a_price_and_a_window() -> None:
    for provider, spec in PROVIDERS.items():
        assert cost(provider, spec.default_model, MILLION) is not None
        assert (context_window(provider, spec.default_model) or 0) > 100_000
    assert cost("demo", "demo", MILLION) is not None
