"""The OpenAPI document is true: what it says is what the server does, whatever schemathesis sends."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from tests.support.inside import Inside
from tests.support.shared import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)
SEND = "/api/threads/{thread_id}/send"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[Inside]:
    async with shared(postgres_url, template, with_executor=False, KHALA_RUNS_PER_OWNER="100000") as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(server: Inside) -> dict[str, Any]:
    return dict((await server.http.get("/api/openapi.json")).raise_for_status().json())


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    methods = document["paths"].items()
    return [(f"{verb} {path}", operation) for path, verbs in methods for verb, operation in verbs.items()]


async def schemathesis(server: Inside, folder: Path, *words: str) -> None:
    """Let schemathesis attack a thread with a run in it; raises with its report if something is not as documented."""
    thread = await server.thread()
    run_id = (await thread.send("Hello"))["runId"]
    config = folder / "schemathesis.toml"
    config.write_text(f'[parameters]\n"path.thread_id" = "{thread.id}"\n"path.run_id" = "{run_id}"\n')
    program = Path(sys.executable).parent / "schemathesis"
    given = [f"--config-file={config}", "run", f"{server.url}/api/openapi.json", f"--checks={CHECKS}", "--seed=1",
             "--suppress-health-check=all", "--no-shrink", "--request-timeout=10"]  # fmt: skip
    words = tuple(word.format(key=thread.key) for word in words)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *given, *words, cwd=folder, stdout=pipe, stderr=pipe)
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


async def test_with_the_right_key_nothing_happens_that_is_not_documented(server: Inside, tmp_path: Path) -> None:
    # Streams don't end, and a deleted thread leaves nothing to test: both have tests of their own.
    left_out = ["--exclude-path-regex=/events$", "--exclude-method=DELETE", "--phases=examples,coverage,fuzzing"]
    await schemathesis(server, tmp_path, "--header=X-Anon-Key: {key}", "--max-examples=3", *left_out)


async def test_without_a_key_nothing_happens_that_is_not_documented(server: Inside, tmp_path: Path) -> None:
    await schemathesis(server, tmp_path, "--phases=fuzzing", "--max-examples=3")


async def test_every_operation_says_what_it_is_and_what_it_answers(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names) == 15
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"].endswith("."), name
        assert [tag for tag in operation["tags"] if tag in {one["name"] for one in document["tags"]}], name
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (name, parameter)
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            if status >= "400" and "health" not in name:
                [(media_type, content)] = response["content"].items()
                assert media_type == "application/problem+json", (name, status)
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert content["examples"], (name, status)


async def test_the_document_names_the_key_the_cursor_and_the_socket(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["anonKey"]
    assert (scheme["type"], scheme["in"], scheme["name"]) == ("apiKey", "header", "X-Anon-Key")
    open_to_all = {"post /api/threads", "get /api/health/live", "get /api/health/ready"}
    for name, operation in operations(document):
        assert operation.get("security", []) == ([] if name in open_to_all else [{"anonKey": []}]), name
    events = document["paths"]["/api/threads/{thread_id}/events"]["get"]
    assert "Last-Event-ID" in [parameter["name"] for parameter in events["parameters"]]
    assert list(events["responses"]["200"]["content"]) == ["text/event-stream"]
    for word in ("/api/ws", "khala.v1", "docs/protocol.md", "application/problem+json"):
        assert word in document["info"]["description"]


async def test_the_statuses_of_a_send_are_all_there(document: dict[str, Any]) -> None:
    responses = document["paths"][SEND]["post"]["responses"]
    assert set(responses) == {"200", "202", "400", "403", "404", "409", "413", "415", "429", "503"}
    assert responses["409"]["description"] == "`conflict` or `run_active`"


async def test_bodies_without_a_required_field_may_be_left_out(document: dict[str, Any]) -> None:
    required = {
        name: operation["requestBody"]["required"]
        for name, operation in operations(document)
        if "requestBody" in operation
    }
    assert required == {
        "post /api/threads": False,
        "patch /api/threads/{thread_id}": True,
        f"post {SEND}": True,
        "post /api/runs/{run_id}/cancel": False,
    }


async def test_every_example_is_valid(document: dict[str, Any]) -> None:
    checked = 0
    for name, operation in operations(document):
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        for content in [one["content"] for one in [*bodies, *operation["responses"].values()] if "content" in one]:
            for media in content.values():
                schema = {"components": document["components"], **media["schema"]}
                examples = [example["value"] for example in media.get("examples", {}).values()]
                examples += media["schema"].get("examples", [])
                for example in examples:
                    jsonschema_rs.validate(schema, example)
                    checked += 1
        if bodies:
            assert checked, name
    assert checked > 50


async def test_a_key_has_the_same_bounds_in_the_document_and_in_the_server(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["NewThread"]["properties"]["anonKey"]
    assert jsonschema_rs.is_valid(schema, "a" * 32)
    for key in ("a" * 31, "a" * 257, " " * 40, "é" * 40, "a" * 32 + "\n"):
        assert not jsonschema_rs.is_valid(schema, key), key
