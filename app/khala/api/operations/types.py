"""Response bodies of health checks and of the list of models."""

from khala.api.types import ApiStruct


class HealthReport(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The state of each dependency. `ok` means that conversations work.

    `writable`: Postgres commits writes. `disk`: the folders for files on this machine have space. If `blobs` are in a
    bucket that is unavailable, `ok` stays true: only large results and files cannot be read.
    """

    ok: bool
    database: bool
    writable: bool
    feed: bool
    blobs: bool
    disk: bool
    stopping: bool


class Liveness(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The process is up."""

    ok: bool


class OfferedModel(ApiStruct, frozen=True, kw_only=True):
    """A model, named as in `RunOptions.model`. Prices are decimal strings, and absent if they are unknown.

    `title` is what people read instead of `name`, and `description` what the model is good for, in one line; both are
    absent unless the operator has set them.
    """

    model: str
    provider: str
    name: str
    title: str | None = None
    description: str | None = None
    input_usd_per_million: str | None = None
    output_usd_per_million: str | None = None
    context_tokens: int | None = None


class OfferedModels(ApiStruct, frozen=True, kw_only=True):
    """The models that a request may name, and the default model.

    `embeddings` is the embedding model. Without one, searches are by words. `titles` says that a model writes titles of
    threads that have none.
    """

    default: str
    items: list[OfferedModel]
    embeddings: str | None = None
    titles: bool = False
