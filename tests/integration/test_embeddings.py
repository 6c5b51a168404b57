"""The embedding model over OpenAI's protocol, against a local server that is correct, slow, away or wrong."""

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from khala.domain.backoff import Backoff
from khala.domain.vectors import Vector
from khala.models.embeddings import embedder as embedder_module
from khala.models.embeddings import embedding_names, openai_protocol
from khala.models.embeddings.embedder import MAX_CALLS, Embedder
from khala.models.embeddings.factory import EmbeddingModelError, open_embedder
from khala.models.port import ModelFailed
from khala.models.provider_registry import ProviderAccess
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings

CONCEPTS = [("dog", "puppy"), ("car", "automobile"), ("tea", "coffee")]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings(CONCEPTS) as server:
        yield server


def opened(server: EmbeddingServer, name: str = "openai:local") -> Embedder:
    ref = embedding_names.parse(name)
    assert ref is not None
    return open_embedder(ref, ProviderAccess(key="secret", url=server.url))


@pytest.fixture
async def embedder(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Embedder]:
    monkeypatch.setattr("khala.models.retry_policy.BACKOFF", Backoff(first_seconds=0.01))
    embedder = opened(server)
    yield embedder
    await embedder.aclose()


def cosine(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_texts_with_one_meaning_are_near_and_others_are_far(embedder: Embedder, server: EmbeddingServer) -> None:
    result = await embedder.documents(["my puppy", "a dog and a car", "the automobile", "nothing of this"])
    puppy, both, car, none = result.vectors
    assert cosine(puppy, both) == pytest.approx(1 / math.sqrt(2))
    assert cosine(puppy, car) == cosine(puppy, none) == 0
    assert all(cosine(vector, vector) == pytest.approx(1) for vector in result.vectors)
    assert result.tokens == 12
    assert not result.estimated
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "reply", [EmbeddingReply(plain=True), EmbeddingReply(reverse=True), EmbeddingReply(usage=False)]
)
async def test_servers_may_answer_in_lists_in_any_order_and_without_usage(
    embedder: Embedder, server: EmbeddingServer, reply: EmbeddingReply
) -> None:
    server.script.append(reply)
    result = await embedder.documents(["a puppy", "tea"])
    assert [list(vector) for vector in result.vectors] == [[1, 0, 0, 0], [0, 0, 1, 0]]
    assert result.estimated is not reply.usage
    assert result.tokens > 0


async def test_many_texts_are_sent_in_several_calls(embedder: Embedder, server: EmbeddingServer) -> None:
    texts = [f"a dog {number}" for number in range(300)]
    result = await embedder.documents(texts)
    assert len(result.vectors) == 300
    assert [len(request["input"]) for request in server.requests] == [128, 128, 44]
    assert server.texts == texts


async def test_a_requested_number_of_dimensions_is_sent(server: EmbeddingServer) -> None:
    embedder = opened(server, "openai:local@2")
    result = await embedder.documents(["a dog"])
    assert list(result.vectors[0]) == [1, 0]
    assert server.requests[0]["dimensions"] == 2
    await embedder.aclose()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (EmbeddingReply(change=lambda vectors: vectors[1:]), "1 vectors for 2 texts"),
        (EmbeddingReply(change=lambda vectors: [*vectors, vectors[0]]), "3 vectors for 2 texts"),
        (EmbeddingReply(change=lambda vectors: [vectors[0], vectors[1][1:]]), "3 dimensions instead of 4"),
        (EmbeddingReply(change=lambda vectors: [[math.nan] * 4, vectors[1]]), "not finite"),
        (EmbeddingReply(change=lambda vectors: [[math.inf, 0, 0, 0], vectors[1]]), "not finite"),
        (EmbeddingReply(change=lambda vectors: [[0] * 4, vectors[1]]), "only zeros"),
        (EmbeddingReply(change=lambda vectors: [[], vectors[1]]), "0 dimensions"),
        (EmbeddingReply(change=lambda vectors: [[1.0] * 5000] * 2), "5000 dimensions"),
        (EmbeddingReply(plain=True, change=lambda vectors: [["no number"] * 4, vectors[1]]), "Expected `float`"),
        (EmbeddingReply(body={"error": {"message": "no such model"}}), "no such model"),
        (EmbeddingReply(body={"object": "list"}), "0 vectors for 2 texts"),
        (EmbeddingReply(body={"data": [{"index": 0, "embedding": "AAAA!"}] * 2}), "not numbered"),
        (EmbeddingReply(body={"data": [{"embedding": "AAAA!"}] * 2}), "base64"),
        (EmbeddingReply(body={"data": [{"embedding": "AAA="}] * 2}), "32-bit"),
        (EmbeddingReply(raw=b"<html>"), "malformed"),
        (EmbeddingReply(raw=b" " * (2 << 20)), "more than"),
    ],
)
async def test_a_wrong_answer_is_an_error_and_never_a_vector(
    embedder: Embedder, server: EmbeddingServer, reply: EmbeddingReply, reason: str
) -> None:
    server.default = reply
    with pytest.raises(ModelFailed) as raised:
        await embedder.documents(["a dog", "a car"])
    assert reason in str(raised.value.__cause__)
    assert raised.value.retryable
    assert len(server.requests) == 3


@pytest.mark.parametrize("tokens", [-1_000, 10**30, 5_000])
async def test_usage_that_the_texts_cannot_have_is_estimated(
    embedder: Embedder, server: EmbeddingServer, tokens: int
) -> None:
    server.default = EmbeddingReply(body={"data": [{"embedding": [1, 0]}], "usage": {"prompt_tokens": tokens}})
    result = await embedder.documents(["a dog"])
    assert (result.tokens, result.estimated) == (2, True)


async def test_a_response_that_arrives_byte_by_byte_is_given_up(
    embedder: Embedder, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_protocol, "CALL_TIMEOUT_SECONDS", 0.1)
    server.default = EmbeddingReply(pause=0.02)
    with pytest.raises(ModelFailed) as raised:
        await embedder.documents(["a dog"])
    assert (raised.value.code, raised.value.retryable) == ("timeout", True)


async def test_a_model_with_other_dimensions_under_the_same_name_is_refused(
    embedder: Embedder, server: EmbeddingServer
) -> None:
    await embedder.documents(["a dog"])
    server.concepts = [*CONCEPTS, ("house",)]
    with pytest.raises(ModelFailed) as raised:
        await embedder.documents(["a car"])
    assert "5 dimensions instead of 4" in str(raised.value.__cause__)


async def test_a_busy_server_is_asked_again_when_it_says(embedder: Embedder, server: EmbeddingServer) -> None:
    server.script.extend([EmbeddingReply(status=429, headers={"Retry-After-Ms": "50"}), EmbeddingReply(status=503)])
    assert len((await embedder.documents(["a dog"])).vectors) == 1
    assert len(server.requests) == 3


async def test_a_refusal_is_not_repeated(embedder: Embedder, server: EmbeddingServer) -> None:
    server.default = EmbeddingReply(status=401)
    with pytest.raises(ModelFailed, match="rejected the API key"):
        await embedder.documents(["a dog"])
    assert len(server.requests) == 1


async def test_a_query_is_embedded_once_and_kept(embedder: Embedder, server: EmbeddingServer) -> None:
    first, second = await embedder.query(" a dog "), await embedder.query("a dog")
    assert first == second is not None
    assert server.texts == ["a dog"]
    assert await embedder.query("  ") is None


async def test_searches_do_not_wait_for_a_server_that_is_away(
    embedder: Embedder, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder_module, "QUERY_TIMEOUT_SECONDS", 0.05)
    server.default = EmbeddingReply(seconds=0.3)
    assert await embedder.query("a dog") is None
    asked = len(server.requests)
    assert [await embedder.query(f"car {number}") for number in range(50)] == [None] * 50
    assert len(server.requests) == asked
    monkeypatch.setattr(embedder_module, "QUERY_TIMEOUT_SECONDS", 5)
    server.default = EmbeddingReply()
    embedder._paused_until = 0
    assert await embedder.query("a dog") is not None


async def test_documents_that_wait_for_a_slow_server_do_not_delay_a_search(
    embedder: Embedder, server: EmbeddingServer
) -> None:
    server.poison, server.poisoned = "document", EmbeddingReply(seconds=60)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(embedder.documents([f"document {number}"])) for number in range(8)]
        while len(server.requests) < MAX_CALLS["document"]:
            await asyncio.sleep(0.01)
        assert await embedder.query("a dog") is not None
        for task in waiting:
            task.cancel()
    assert len(server.requests) == MAX_CALLS["document"] + 1


def test_the_pause_after_failures_grows_and_is_bounded() -> None:
    pauses = [embedder_module.PAUSE.delay(failures) for failures in range(1, 100)]
    assert pauses[0] == 1
    assert max(pauses) == 60
    assert all(one <= other for one, other in pairwise(pauses))


def test_without_key_and_address_the_model_is_refused_at_start() -> None:
    ref = embedding_names.parse("openai:text-embedding-3-small")
    assert ref is not None
    with pytest.raises(EmbeddingModelError, match="KHALA_EMBEDDINGS_KEY"):
        open_embedder(ref, ProviderAccess())


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("openai:nomic-embed-text", ("openai", "nomic-embed-text", None)),
        ("openai:BAAI/bge-m3@512", ("openai", "BAAI/bge-m3", 512)),
        ("openai:bge-m3:latest", ("openai", "bge-m3:latest", None)),
        ("local:/srv/models/minilm", ("local", "/srv/models/minilm", None)),
        (" none ", None),
    ],
)
def test_names_of_models_are_parsed(text: str, parsed: tuple[str, str, int | None] | None) -> None:
    ref = embedding_names.parse(text)
    assert (ref and (ref.provider, ref.name, ref.dimensions)) == parsed
    assert ref is None or embedding_names.parse(str(ref)) == ref


@pytest.mark.parametrize(
    "text", ["openai:", "voyage:x", "openai:x@0", "openai:x@9999", "openai:x@y@", "local:/x@3", ""]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|asks for|cannot choose"):
        embedding_names.parse(text)
