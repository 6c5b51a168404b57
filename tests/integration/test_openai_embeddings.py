"""`POST /v1/embeddings`, by OpenAI's own client and by hand."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from khala.models.embeddings.embedder import MAX_CHARACTERS
from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONCEPTS = [("dog", "puppy"), ("car",)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embeddings() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings(CONCEPTS) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str, embeddings: EmbeddingServer) -> AsyncIterator[InProcessServer]:
    async with shared(
        postgres_url,
        template,
        KHALA_EMBEDDINGS="openai:near@3",
        KHALA_EMBEDDINGS_URL=embeddings.url,
        KHALA_EMBEDDINGS_KEY="the-key",
    ) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def somebody(server: InProcessServer) -> AsyncIterator[Person]:
    store = Database(server.database_url)
    yield await person(store)
    await store.close()


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 3}])
@pytest.mark.parametrize("model", ["khala", "near", "openai:near@3"])
async def test_openais_client_gets_a_vector_for_each_text(
    server: InProcessServer, embeddings: EmbeddingServer, somebody: Person, model: str, more: dict[str, Any]
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=somebody.token, max_retries=0) as client:
        one = await client.embeddings.create(model=model, input="a puppy")
        many = await client.embeddings.create(model=model, input=["a car", "a dog", "neither"], **more)
    assert one.data[0].embedding == [1, 0, 0]
    assert one.usage.total_tokens == one.usage.prompt_tokens == 2
    if more.get("encoding_format") != "base64":
        assert [item.embedding for item in many.data] == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert [item.index for item in many.data] == [0, 1, 2]
    assert many.model == "openai:near@3"
    assert embeddings.headers[-1]["Authorization"] == "Bearer the-key"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": ["a dog", "  "]}, 400, "input[1]"),
        ({"input": []}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": "a" * (MAX_CHARACTERS + 1)}, 400, "input"),
        ({"input": [1, 2, 3]}, 400, "input[0]"),
        ({"input": [[1, 2], [3]]}, 400, "input[0]"),
        ({"input": "a\u0000b"}, 400, "input"),
        ({"input": "a dog", "dimensions": 4}, 400, "dimensions"),
        ({"input": "a dog", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": 7}, 400, "input"),
        ({}, 400, None),
        ({"input": "a dog", "model": "text-embedding-3-small"}, 404, "model"),
    ],
)
async def test_a_bad_request_gets_an_error_that_names_the_place(
    server: InProcessServer, somebody: Person, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await server.http.post("/v1/embeddings", json={"model": "khala"} | body, headers=somebody.headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


async def test_an_error_of_the_embedding_server_is_told_with_its_code(
    server: InProcessServer, embeddings: EmbeddingServer, somebody: Person
) -> None:
    embeddings.script.append(EmbeddingReply(status=401))
    answer = await server.http.post(
        "/v1/embeddings", json={"model": "khala", "input": "a dog"}, headers=somebody.headers
    )
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "refused"
    assert "the-key" not in answer.text


async def test_guests_are_refused(server: InProcessServer) -> None:
    answer = await server.http.post("/v1/embeddings", json={"model": "khala", "input": "a dog"})
    assert answer.status_code == 401


async def test_a_server_without_an_embedding_model_says_so(database_url: str) -> None:
    async with khala(database_url) as server:
        store = Database(server.database_url)
        somebody = await person(store)
        await store.close()
        answer = await server.http.post(
            "/v1/embeddings", json={"model": "khala", "input": "a dog"}, headers=somebody.headers
        )
    assert answer.status_code == 404
    assert "KHALA_EMBEDDINGS" in answer.json()["error"]["message"]
