"""Settings of embeddings, by which texts are found by their meaning."""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from khala.models.embeddings import embedding_names
from khala.models.embeddings.embedding_names import EmbeddingRef
from khala.models.provider_registry import ProviderAccess
from khala.settings.fields import SettingGroup, TextValue, ValueKind, WebUrl, Whole, setting


def _model(value: object) -> EmbeddingRef | None:
    return embedding_names.parse(str(value))


EmbeddingName: TypeAlias = Annotated[EmbeddingRef | None, BeforeValidator(_model), ValueKind("embedding model")]


class EmbeddingSettings(SettingGroup):
    """The embedding model, and the server that runs it."""

    model: EmbeddingName = setting(
        "KHALA_EMBEDDINGS",
        None,
        "The embedding model, as `openai:NAME`, `openai:NAME@DIMENSIONS`, `local:DIRECTORY` (which needs "
        "`khala-server[local]`) or `none`. Without one, texts are found by their words only.",
    )
    url: WebUrl | None = setting(
        "KHALA_EMBEDDINGS_URL",
        None,
        "Address of a server that speaks OpenAI's embeddings protocol.",
        shown_default="`OPENAI_BASE_URL`",
    )
    key: TextValue | None = setting(
        "KHALA_EMBEDDINGS_KEY",
        None,
        "API key of that server.",
        shown_default="`OPENAI_API_KEY`, unless `KHALA_EMBEDDINGS_URL` is set",
        secret=True,
    )

    message_days: Whole = setting(
        "KHALA_EMBEDDINGS_DAYS",
        30,
        "Messages of the last so many days are embedded, new ones and once those from before, so that searches find "
        "them by their meaning. The owners' budgets pay for it. 0 to embed none and delete the vectors of messages: "
        "[search by meaning](operations.md#search-by-meaning).",
        unit="days",
        minimum=0,
        maximum=36_500,
    )

    def access(self, chat: ProviderAccess) -> ProviderAccess:
        """The key and address for calls. `chat`: those of OpenAI's chat models, for what is not set here.

        The key of the chat models is not sent to an address that is set here.
        """
        if self.url is not None:
            return ProviderAccess(key=self.key, url=self.url)
        if self.key is not None:
            return ProviderAccess(key=self.key, url=chat.url)
        return chat
