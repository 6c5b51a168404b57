"""Models as OpenAI's protocol tells them."""

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be asked for."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All models that may be asked for by these names."""

    data: list[Model]
    object: str = "list"
