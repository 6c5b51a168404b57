"""`GET /api/models`: the models that a request may name, with their titles and prices."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from litestar import get
from litestar.di import NamedDependency

from khala.api.context import Context, ModelContext
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
async def list_models(context: NamedDependency[Context]) -> OfferedModels:
    """List the models that a request may name, with list prices per million tokens."""
    # The first call imports the price list, which takes up to a second.
    offered = await asyncio.to_thread(offered_models, context.models.listed)
    models = context.models
    name = None if models.embedder is None else models.embedder.name
    items = [_with_texts(item, models) for item in offered.items]
    return msgspec.structs.replace(offered, items=items, embeddings=name, titles=models.writes_titles)


@lru_cache(maxsize=1)
def offered_models(names: Sequence[str]) -> OfferedModels:
    """Return the models, the default first, with prices and sizes as far as they are known."""
    return OfferedModels(default=names[0], items=[_offered_model(name) for name in names])


def _with_texts(item: OfferedModel, models: ModelContext) -> OfferedModel:
    title, description = models.titles.get(item.model), models.descriptions.get(item.model)
    return msgspec.structs.replace(item, title=title, description=description)


def _offered_model(model: str) -> OfferedModel:
    provider, _, suffix = model.partition(":")
    name = suffix or provider
    input_price, output_price = prices.per_million(provider, name)
    return OfferedModel(
        model=model,
        provider=provider,
        name=name,
        input_usd_per_million=format_optional(input_price),
        output_usd_per_million=format_optional(output_price),
        context_tokens=prices.context_window(provider, name),
    )
