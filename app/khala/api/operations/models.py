"""`GET /api/models`: the models that may be asked for by name, and what they cost."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from litestar import get
from litestar.di import NamedDependency

from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.operations.types import OfferedModel, OfferedModels
from khala.domain.decimals import format_optional
from khala.models import prices


@get(
    "/models",
    operation_id="listModels",
    tags=["Threads"],
    summary="List models",
    response_description="Models, the default first.",
    responses=documented_errors("rate_limited"),
)
async def models(context: NamedDependency[Context]) -> OfferedModels:
    """The models that may be asked for by name, with list prices per million tokens."""
    # The first look imports the price list, for up to a second.
    return await asyncio.to_thread(offers, context.models.listed)


@lru_cache(maxsize=1)
def offers(names: Sequence[str]) -> OfferedModels:
    """These models, the default first, with what is known of them."""
    return OfferedModels(default=names[0], items=[_offer(name) for name in names])


def _offer(model: str) -> OfferedModel:
    provider, _, named = model.partition(":")
    name = named or provider
    told, said = prices.per_million(provider, name)
    return OfferedModel(
        model=model,
        provider=provider,
        name=name,
        input_usd_per_million=format_optional(told),
        output_usd_per_million=format_optional(said),
        context_tokens=prices.context_window(provider, name),
    )
