# ruff: noqa: E501
"""Text that Postgres cannot store, at each door of the server: NUL characters and lone surrogates."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = '{"role":"user","content":"x"}'
FUNCTION = '{"name":"f","description":"@","parameters":{"type":"object","properties":{"@":{"type":"string"}}}}'
AG_UI = '"state":{},"tools":[],"context":[],"forwardedProps":{}'
DOORS = [
    ("/v1/chat/completions", '{"model":"khala","messages":[{"role":"user","content":"@"}]}'),
    ("/v1/chat/completions", f'{{"model":"khala","messages":[{{"role":"system","content":"@"}},{USER}]}}'),
    ("/v1/chat/completions", f'{{"model":"khala","messages":[{USER}],"stop":["@"]}}'),
    ("/v1/chat/completions", f'{{"model":"khala","messages":[{USER}],"tools":[{{"type":"function","function":{FUNCTION}}}]}}'),
    ("/v1/responses", '{"model":"khala","input":"@"}'),
    ("/v1/responses", '{"model":"khala","input":"x","instructions":"@"}'),
    ("/v1/responses", '{"model":"khala","input":"x","metadata":{"k":"@"}}'),
    ("/v1/conversations", '{"items":[{"type":"message","role":"user","content":"@"}]}'),
    ("/api/chat", '{"id":"a","messages":[{"id":"@","role":"user","parts":[{"type":"text","text":"x"}]}],"trigger":"submit-message"}'),
    ("/api/chat", '{"id":"b","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"@"}]}],"trigger":"submit-message"}'),
    ("/api/ag-ui", f'{{"threadId":"a","runId":"a","messages":[{{"id":"m","role":"user","content":"@"}}],{AG_UI}}}'),
    ("/api/threads", '{"title":"@"}'),
    ("/api/memories", '{"text":"@"}'),
]  # fmt: skip

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def caller(server: InProcessServer) -> AsyncIterator[Person]:
    database = Database(server.database_url)
    yield await person(database)
    await database.close()


@pytest.mark.parametrize("bad", ["\\u0000", "\\ud800"])
@pytest.mark.parametrize(("path", "body"), DOORS)
async def test_text_that_cannot_be_stored_is_refused(
    server: InProcessServer, caller: Person, path: str, body: str, bad: str
) -> None:
    json.loads(body)
    headers = caller.headers | {"Content-Type": "application/json"}
    refused = await server.http.post(path, content=body.replace("@", f"a{bad}b"), headers=headers)
    assert refused.status_code == 400, refused.text
    assert "NUL characters" in refused.text if bad == "\\u0000" else "not valid JSON" in refused.text
