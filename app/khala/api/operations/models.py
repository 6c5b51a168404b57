"""`GET /api/models`: the models that may be asked for by name, and what they cost."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from litestar import get
from litestar.di import NamedDependency

from khala.api.bodies import Body
from khala.api.context import Context
from khala.api.http.problem_details import documented
from khala.domain.decimals import format_optional
from khala.models import prices


class Offer(Body, frozen=True, kw_only=True):
    """A model, as `RunOptions.model` names it. Prices are decimal strings, absent where they are not known."""

    model: str
    provider: str
    name: str
    input_usd_per_million: str | None = None
    output_usd_per_million: str | None = None
    context_tokens: int | None = None


class Offers(Body, frozen=True, kw_only=True):
    """The models that may be asked for by name, and the one that answers where none is named."""

    default: str
    items: list[Offer]


@get(
    "/models",
    operation_id="listModels",
    tags=["Threads"],
    summary="List models",
    response_description="Models, the default first.",
    responses=documented("rate_limited"),
)
async def models(context: NamedDependency[Context]) -> Offers:
    """The models that may be asked for by name, with list prices per million tokens."""
    # The first look imports the price list, for up to a second.
    return await asyncio.to_thread(offers, context.models)


@lru_cache(maxsize=1)
def offers(names: Sequence[str]) -> Offers:
    """These models, the default first, with what is known of them."""
    return Offers(default=names[0], items=[_offer(name) for name in names])


def _offer(model: str) -> Offer:
    provider, _, named = model.partition(":")
    name = named or provider
    told, said = prices.per_million(provider, name)
    return Offer(
        model=model,
        provider=provider,
        name=name,
        input_usd_per_million=format_optional(told),
        output_usd_per_million=format_optional(said),
        context_tokens=prices.context_window(provider, name),
    )
