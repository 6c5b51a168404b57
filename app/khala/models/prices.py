"""Prices of calls and context lengths of models, from price data that ships with the program."""

from decimal import Decimal

from khala.domain.parts import TokenUsage
from khala.models.provider_registry import price_list

SAMPLE = 1_000
"""Tokens of a call that is short enough for the price from which none is raised."""


def cost(provider: str, model: str, usage: TokenUsage) -> Decimal | None:
    """USD for a call by its usage at list prices, without discounts for cached input; None if unknown. Never raises."""
    if provider == "demo":
        return Decimal(0)
    from genai_prices import Usage as Amount
    from genai_prices import calc_price

    try:
        amount = Amount(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        return calc_price(amount, model, provider_id=price_list(provider)).total_price
    except Exception:  # noqa: BLE001  # unknown is a LookupError; no other flaw of the data may fail a run either
        return None


def per_million(provider: str, model: str) -> tuple[Decimal | None, Decimal | None]:
    """USD for a million tokens of input and of output, as short calls cost; None if unknown. Never raises."""
    costs = (
        cost(provider, model, TokenUsage(input_tokens=SAMPLE)),
        cost(provider, model, TokenUsage(output_tokens=SAMPLE)),
    )
    told, said = (None if one is None else one * 1_000_000 / SAMPLE for one in costs)
    return told, said


def context_window(provider: str, model: str) -> int | None:
    """Tokens that a model takes, input and output together; None if unknown. Never raises."""
    from genai_prices import data_snapshot

    try:
        _, found = data_snapshot.get_snapshot().find_provider_model(model, None, price_list(provider), None)
    except Exception:  # noqa: BLE001  # as above
        return None
    return found.context_window
