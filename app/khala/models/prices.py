"""Prices of calls and context lengths of models, from price data that ships with the program."""

from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from khala.domain.parts import TokenUsage
from khala.models.provider_registry import price_list

SAMPLE_TOKENS = 1_000
"""Tokens of a call that is short enough for the base price of each model."""


def cost(provider: str, model: str, usage: TokenUsage) -> Decimal | None:
    """USD for a call by its usage at list prices, without discounts for cached input; None if unknown. Never raises."""
    if provider == "demo":
        return Decimal(0)
    from genai_prices import Usage as Amount

    found = _find(provider, model)
    if found is None:
        return None
    try:
        amount = Amount(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        price: Decimal = found[1].calc_price(amount, found[0], genai_request_timestamp=datetime.now(UTC)).total_price
    except Exception:  # noqa: BLE001  # no error of the data may fail a run
        return None
    return price


def per_million(provider: str, model: str) -> tuple[Decimal | None, Decimal | None]:
    """USD for a million tokens of input and of output, at the price of short calls; None if unknown. Never raises."""
    costs = (
        cost(provider, model, TokenUsage(input_tokens=SAMPLE_TOKENS)),
        cost(provider, model, TokenUsage(output_tokens=SAMPLE_TOKENS)),
    )
    input_price, output_price = (None if one is None else one * 1_000_000 / SAMPLE_TOKENS for one in costs)
    return input_price, output_price


def context_window(provider: str, model: str) -> int | None:
    """Tokens of a model's context window, input and output together; None if unknown. Never raises."""
    found = _find(provider, model)
    window: int | None = None if found is None else found[1].context_window
    return window


@lru_cache(maxsize=256)
def _find(provider: str, model: str) -> tuple[Any, Any] | None:
    """The data of a provider and of its model; None if unknown. A search for an unknown model takes 0.3 ms."""
    from genai_prices import data_snapshot

    try:
        return data_snapshot.get_snapshot().find_provider_model(model, None, price_list(provider), None)
    except Exception:  # noqa: BLE001  # LookupError for an unknown model; others as above
        return None
