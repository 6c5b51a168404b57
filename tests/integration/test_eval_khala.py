"""Khala's own search, as `make eval` measures it."""

import pytest

from khala.models.embeddings import embedding_names
from khala.models.embeddings.factory import open_embedder
from khala.models.provider_registry import ProviderAccess
from tests.eval.eval_sets import MemoryItem
from tests.eval.khala_memories import khala_memories
from tests.support.embeddings_server import serving_embeddings

MEMORIES = (
    MemoryItem(id="new", text="Lives in Oslo", at="2025-01-01", supersedes="old", keywords="residence"),
    MemoryItem(id="old", text="Lives in Rome", at="2024-01-01"),
    MemoryItem(id="pet", text="Has a dog", at="2024-06-01", keywords="animal"),
    MemoryItem(id="twin", text="has a dog.", at="2024-07-01"),
    MemoryItem(id="long", text="word " * 2_000, at="2024-08-01", keywords="k " * 2_000),
)


async def test_khala_searches_by_words_and_by_meaning_and_keywords_only_where_they_are_switched_on(
    postgres_url: str,
) -> None:
    ref = embedding_names.parse("openai:scripted")
    assert ref is not None
    async with serving_embeddings([("dog", "puppy"), ("oslo", "rome", "home")]) as server:
        embedder = open_embedder(ref, ProviderAccess(key="secret", url=server.url))
        try:
            async with khala_memories(postgres_url, embedder) as (retrievers, facts):
                named = {one.name: one for one in retrievers}
                assert "postgres" in facts
                assert {*named} == {
                    "khala-lexical",
                    "khala-lexical+keywords",
                    "khala-lexical+keywords+history",
                    "khala-hybrid",
                    "khala-hybrid+keywords",
                    "khala-hybrid+keywords+history",
                }
                found = {}
                for name, retriever in named.items():
                    before = retriever.cpu_seconds()
                    await retriever.index(MEMORIES)
                    for question in ("Who lives in Rome?", "animal", "my puppy"):
                        found[name, question] = [one for one, _ in await retriever.search(question, 5)]
                    assert retriever.cpu_seconds() > before
        finally:
            await embedder.aclose()
    for name in named:
        assert ("old" in found[name, "Who lives in Rome?"]) == name.endswith("+history")
        assert found[name, "Who lives in Rome?"][0] == "new"
    assert found["khala-lexical", "animal"] == found["khala-lexical", "my puppy"] == []
    assert found["khala-lexical+keywords", "animal"] == ["pet", "twin"]
    assert found["khala-hybrid", "my puppy"][:2] == ["pet", "twin"]


async def test_without_an_embedding_model_khala_searches_by_words_only(postgres_url: str) -> None:
    async with khala_memories(postgres_url, None, keywords=False) as (retrievers, _):
        assert [(one.name, one.floor) for one in retrievers] == [("khala-lexical", 0.0)]
        await retrievers[0].index(MEMORIES[2:])
        assert [name for name, _ in await retrievers[0].search("the dog", 1)] == ["pet"]
        await retrievers[0].index(MEMORIES[:2])
        assert await retrievers[0].search("the dog", 5) == []
        with pytest.raises(KeyError):
            await retrievers[0].index(MEMORIES[:1])
