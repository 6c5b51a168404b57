"""The OpenAPI document: the server behaves as documented for any request and credentials of schemathesis."""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import openai
import pytest
import pytest_asyncio

from khala.store.accounts import api_tokens
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.event_endpoint import new_endpoint
from tests.support.in_process import InProcessServer
from tests.support.providers import Reply, serving
from tests.support.shared_server import shared
from tests.support.store import ask

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method,"
    "accepted_for_shape"
)
WITHOUT_SHAPE = CHECKS.removesuffix(",accepted_for_shape")
"""For `/v1`: in which order messages may come, no schema can say."""
DOCUMENT = "/api/openapi.json"
ROOT = Path(__file__).parents[2]
COVERAGE = "--phases=examples,coverage,fuzzing"
"""The phases with values at the bounds of each parameter. They take a minute of a core."""
COVERED_LENGTH = 100_000
"""The lowest bound of a string that the coverage phase does not join with its pattern."""
THREADS, PLANS = "^/api/threads", "^/api/(plans|runs|schedules|memories)"
PARTS = {
    "threads": [f"--include-path-regex={THREADS}"],
    "plans": [f"--include-path-regex={PLANS}"],
    "others": [f"--exclude-path-regex={THREADS}|{PLANS}"],
}
"""Three parts of the operations that take about the same time, so that several workers share it."""
STORED = "/v1/(responses|conversations)"
"""Operations of `/v1` that find what is stored. They have few examples each."""
SEND = "/api/threads/{thread_id}/send"
ONCE = ("deleteThread", "deleteAccount", "deletePlan", "deleteWebhook")
"""Operations that leave nothing to test; they have tests of their own."""
WITHOUT_ACCESS = {
    "post /api/threads", "get /api/health/live", "get /api/health/ready", "get /health", "get /groups", "get /api/auth",
    "get /api/models",
    "post /api/auth/register",
    "post /api/auth/login", "post /api/auth/logout", "get /api/auth/oidc/login",
}  # fmt: skip
"""Operations that need no account and no key."""
BLIND = {"get /api/health/live", "get /api/health/ready", "get /health", "get /api/auth", "get /api/models"}
"""Operations that don't look at who asks."""
BY_ACCOUNT = {
    "get /mcp-servers",
    "post /api/threads/{thread_id}/claim", "post /api/threads/{thread_id}/join", "put /api/threads/{thread_id}/read",
    "post /api/claims", "post /api/auth/password", "get /api/me", "patch /api/me", "delete /api/me",
    "get /api/me/export", "get /api/me/usage/receipts", "get /api/me/audit", "get /api/me/invitations",
    "get /api/me/sessions", "delete /api/me/sessions/{session_id}",
    "post /api/tokens", "get /api/tokens", "delete /api/tokens/{token_id}",
    "get /api/grants", "delete /api/grants/{grant_id}",
    "get /api/connections", "post /api/connections/{name}", "delete /api/connections/{name}",
    "post /api/webhooks", "get /api/webhooks", "get /api/webhooks/{webhook_id}", "patch /api/webhooks/{webhook_id}",
    "delete /api/webhooks/{webhook_id}", "post /api/webhooks/{webhook_id}/secret",
    "post /api/webhooks/{webhook_id}/test", "get /api/webhooks/{webhook_id}/deliveries",
    "post /api/webhooks/{webhook_id}/replay",
    "post /api/tools", "get /api/tools/mine", "post /api/tools/{name}/decision", "delete /api/tools/{name}",
    "get /api/me/tool-rules", "put /api/me/tool-rules", "post /api/workspace/repositories",
    "post /api/agents", "patch /api/agents/{name}", "delete /api/agents/{name}",
    "post /api/agents/{name}/link", "delete /api/agents/{name}/link",
    "post /api/schedules", "get /api/schedules", "get /api/schedules/preview", "get /api/schedules/{schedule_id}",
    "patch /api/schedules/{schedule_id}", "delete /api/schedules/{schedule_id}",
    "post /api/schedules/{schedule_id}/run", "post /api/imports",
    "get /api/me/folder/files", "post /api/me/folder/files", "get /api/me/folder/files/{file_id}",
    "delete /api/me/folder/files/{file_id}",
}  # fmt: skip
"""Operations that a key does not open; it opens all others."""


BY_ANON_KEY = {
    "get /api/me/preferences", "patch /api/me/preferences", "get /api/me/folders", "get /api/me/folder",
    "patch /api/me/folder", "delete /api/me/folder", "get /api/me/push",
    "put /api/me/push/subscriptions", "delete /api/me/push/subscriptions/{subscription_id}",
    "get /api/me/usage", "get /api/me/memory", "patch /api/me/memory", "get /api/memories/proposals",
    "post /api/memories/proposals/{proposal_id}/accept", "delete /api/memories/proposals/{proposal_id}",
}  # fmt: skip
"""Operations that a share key does not open."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    # The account has its one webhook already: no request makes one whose events would leave this machine.
    env = {"KHALA_RUNS_PER_OWNER": "100000", "KHALA_PUBLIC_THREADS": "1", "KHALA_WEBHOOKS_PER_ACCOUNT": "1"}
    async with shared(postgres_url, template, with_executor=False, **env) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(server: InProcessServer) -> dict[str, Any]:
    return dict((await server.http.get("/api/openapi.json")).raise_for_status().json())


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    methods = document["paths"].items()
    return [(f"{verb} {path}", operation) for path, verbs in methods for verb, operation in verbs.items()]


class Requester(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a requester, and the ids for its requests.

    Schemathesis makes up the ids that are missing here.
    """

    headers: dict[str, str]
    ids: dict[str, str]


async def run_schemathesis(
    server: InProcessServer,
    folder: Path,
    requester: Requester,
    *words: str,
    junk: bool = False,
    document: str = DOCUMENT,
) -> None:
    """Run schemathesis as this requester; raises with its report if the server does not behave as documented.

    With `junk`, it makes up credentials, too.
    """
    config = folder / "schemathesis.toml"
    ids = [f'"path.{name}" = "{value}"' for name, value in requester.ids.items()]
    generated = f"with-security-parameters = {str(junk).lower()}"
    config.write_text("\n".join(["[generation]", generated, "[parameters]", *ids, ""]))
    checks = CHECKS if document == DOCUMENT else WITHOUT_SHAPE
    program = Path(sys.executable).parent / "schemathesis"
    given = [f"--config-file={config}", "run", f"{server.url}{document}", f"--checks={checks}", "--seed=1",
             "--suppress-health-check=all", "--no-shrink", "--request-timeout=10", "--warnings=off",
             "--generation-database=:memory:"]  # fmt: skip
    given += [f"--header={name}: {value}" for name, value in requester.headers.items()]
    pipe = asyncio.subprocess.PIPE
    # Beside its tables of Unicode, which take Hypothesis more than a second of a core, it stores nothing there.
    stored = {"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")}
    hooks = {"SCHEMATHESIS_HOOKS": "tests.support.schema_patterns", "PYTHONPATH": str(ROOT)}
    separated = {"KHALA_TEST_SEPARATED_LENGTH": str(COVERED_LENGTH if COVERAGE in words else 0)}
    env = os.environ | hooks | separated | stored
    process = await asyncio.create_subprocess_exec(
        program, *given, *words, cwd=folder, env=env, stdout=pipe, stderr=pipe
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def phases_except(*but: str, coverage: bool = False) -> list[str]:
    """Arguments for the phases, without these operations and without streams, which don't end.

    `coverage`: with the bounds of each parameter, and with more examples. These don't depend on the requester, so one
    test has them.
    """
    left_out = [f"--exclude-operation-id={name}" for name in ("followThread", "importChats", *but)]
    phases = COVERAGE if coverage else "--phases=examples,fuzzing"
    return [phases, f"--max-examples={3 if coverage else 1}", *left_out]


async def requester_with_key(server: InProcessServer) -> Requester:
    """A requester whose key opens two threads. One of them has a run, which a reset of the other does not delete."""
    thread = await server.thread()
    made = await server.http.post("/api/threads", json={"anonKey": thread.key})
    other = Thread(server.http, made.raise_for_status().json()["thread"]["id"], thread.key)
    run_id = (await other.send("Hello"))["runId"]
    ids = {"thread_id": thread.id, "run_id": run_id, "user_id": str(uuid.uuid4()), "link_id": str(uuid.uuid4())}
    file = await server.http.post(f"/api/threads/{other.id}/blobs", content=b"one\ntwo\n", headers=other.headers)
    ids["blob_id"] = file.raise_for_status().json()["blobId"]
    steps = [{"id": "a", "title": "Pack"}]
    plan = (await other.post("plans", {"title": "Trip", "steps": steps})).raise_for_status().json()
    ids |= {"plan_id": plan["id"], "step_id": "a"}
    return Requester(headers=thread.headers, ids=ids)


async def test_with_the_right_key_all_responses_are_documented(server: InProcessServer, tmp_path: Path) -> None:
    await run_schemathesis(server, tmp_path, await requester_with_key(server), *phases_except(*ONCE))


async def test_with_made_up_credentials_all_responses_are_documented(server: InProcessServer, tmp_path: Path) -> None:
    nobody = Requester(headers={}, ids=(await requester_with_key(server)).ids)
    await run_schemathesis(server, tmp_path, nobody, "--phases=fuzzing", "--max-examples=1", junk=True)


@pytest.mark.parametrize("part", PARTS)
async def test_with_an_account_all_responses_are_documented(
    server: InProcessServer, store: Database, tmp_path: Path, part: str
) -> None:
    owner, other = await person(store), await person(store)
    thread_id, second = [await owned_thread(store, owner, welcome="Hello.") for _ in range(2)]
    sent = await ask(store, second, caller=owner.caller)
    link, _ = await sharing.create_link(store, thread_id, "viewer", None, owner.caller)
    ids = {"thread_id": thread_id, "run_id": sent.run_id, "user_id": other.id, "link_id": link.id}
    # Schemathesis also takes ids from lists: it must not revoke the token with which it authenticates.
    spare, _ = await api_tokens.create(store, owner.caller, "spare", ("read",), None)
    ids["token_id"] = spare.id
    # The SSRF guard refuses its address, so that a test ends at once.
    ids["webhook_id"] = (await new_endpoint(store, "http://127.0.0.1:9/", scope=owner.id)).id
    requester = Requester(headers=owner.headers, ids={name: str(value) for name, value in ids.items()})
    await run_schemathesis(server, tmp_path, requester, *phases_except(*ONCE, coverage=True), *PARTS[part])
    me = (await server.http.get("/api/me", headers=owner.headers)).raise_for_status().json()
    assert me["id"] == str(owner.id), "the token was valid until the end"


async def test_all_responses_of_openais_protocol_are_documented(
    postgres_url: str, template: str, tmp_path: Path
) -> None:
    async with serving(default=lambda _: Reply(tokens=("Fine", "."))) as provider:
        model: dict[str, Any] = {
            "KHALA_MODEL": "openai:local",
            "OPENAI_BASE_URL": f"{provider.url}/v1",
            "OPENAI_API_KEY": "k",
        }
        async with shared(postgres_url, template, KHALA_RUNS_PER_OWNER="100000", **model) as inside:
            database = Database(inside.database_url)
            owner = await person(database)
            requester = Requester(headers=owner.headers, ids={"name": "khala"})
            path = "/v1/openapi.json"
            phases = ["--phases=examples,fuzzing", "--max-examples=30", f"--exclude-path-regex={STORED}"]
            await run_schemathesis(inside, tmp_path, requester, *phases, document=path)
            client = openai.AsyncOpenAI(base_url=f"{inside.url}/v1", api_key=owner.token)
            made = await client.conversations.create(items=[{"role": "user", "content": "Hello"}])
            response = await client.responses.create(model="khala", input="Hello")
            (item,) = (await client.conversations.items.list(made.id)).data
            stored = {"response_id": response.id, "conversation_id": made.id, "item_id": str(item.id)}
            phases = ["--phases=examples,fuzzing", "--max-examples=3", f"--include-path-regex={STORED}"]
            left_out = [f"--exclude-operation-id={name}" for name in ("deleteResponse", "deleteConversation")]
            requester = Requester(headers=owner.headers, ids=stored)
            await run_schemathesis(inside, tmp_path, requester, *phases, *left_out, document=path)
            async with database.driver() as driver:
                assert await driver.fetchval("SELECT count(*) FROM runs WHERE status = 'final'"), (
                    "some requests succeeded"
                )
            await database.close()


async def test_every_operation_documents_its_summary_and_responses(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names) == 201
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"].endswith("."), name
        assert [tag for tag in operation["tags"] if tag in {listed["name"] for listed in document["tags"]}], name
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (name, parameter)
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            if status >= "400" and "health" not in name:
                [(media_type, content)] = response["content"].items()
                assert media_type == "application/problem+json", (name, status)
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert content["examples"], (name, status)


async def test_the_document_names_the_keys_the_cursor_and_the_socket(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    shown = {
        name: (scheme["type"], scheme.get("in") or scheme["scheme"], scheme.get("name"))
        for name, scheme in schemes.items()
    }
    assert shown == {
        "session": ("apiKey", "cookie", "khala_session"),
        "bearer": ("http", "bearer", None),
        "anonKey": ("apiKey", "header", "X-Anon-Key"),
        "shareKey": ("apiKey", "header", "X-Share-Key"),
    }
    assert all(scheme["description"] for scheme in schemes.values())
    events = document["paths"]["/api/threads/{thread_id}/events"]["get"]
    assert "Last-Event-ID" in [parameter["name"] for parameter in events["parameters"]]
    assert list(events["responses"]["200"]["content"]) == ["text/event-stream"]
    for word in ("/api/ws", "khala.v1", "docs/protocol.md", "application/problem+json"):
        assert word in document["info"]["description"]


async def test_every_operation_documents_its_credentials(document: dict[str, Any]) -> None:
    by_account: list[dict[str, list[str]]] = [{"session": []}, {"bearer": []}]
    by_key: list[dict[str, list[str]]] = [*by_account, {"anonKey": []}, {"shareKey": []}]
    for name, operation in operations(document):
        of_account = name in BY_ACCOUNT or "/api/console/" in name
        needed: list[dict[str, list[str]]] = by_account if of_account else by_key
        if name in WITHOUT_ACCESS:
            needed = []
        if "/api/executor/" in name:
            needed = [{"bearer": []}]
        if name in BY_ANON_KEY:
            needed = [*by_account, {"anonKey": []}]
        assert operation.get("security", []) == needed, name
        # A bearer token that is not good is told so even where none is needed.
        assert ("401" in operation["responses"]) == (name not in BLIND), name
    assert {name for name, _ in operations(document)} >= WITHOUT_ACCESS | BY_ACCOUNT


async def test_all_statuses_of_a_send_are_documented(document: dict[str, Any]) -> None:
    responses = document["paths"][SEND]["post"]["responses"]
    assert set(responses) == {"200", "202", "400", "401", "403", "404", "409", "413", "415", "429", "503"}
    assert responses["409"]["description"] == "`conflict` or `run_active`"
    assert responses["429"]["description"] == "`rate_limited` or `budget_exhausted`"


async def test_bodies_without_a_required_field_may_be_left_out(document: dict[str, Any]) -> None:
    required = {
        name: operation["requestBody"]["required"]
        for name, operation in operations(document)
        if "requestBody" in operation
    }
    needed = {
            "patch /api/threads/{thread_id}", f"post {SEND}", "post /api/threads/{thread_id}/regenerate",
        "post /api/threads/{thread_id}/claim",
        "put /api/threads/{thread_id}/read", "put /api/threads/{thread_id}/members/{user_id}",
        "post /api/threads/{thread_id}/links", "post /api/threads/{thread_id}/tokens",
        "post /api/threads/{thread_id}/blobs",
        "post /api/threads/{thread_id}/messages", "post /api/schedules", "patch /api/schedules/{schedule_id}",
        "post /api/imports",
        "post /api/agents", "patch /api/agents/{name}", "post /api/route",
        "post /api/threads/{thread_id}/plans", "post /api/threads/{thread_id}/plans/import",
        "post /api/threads/{thread_id}/plans/draft",
        "patch /api/plans/{plan_id}", "post /api/plans/{plan_id}/iterations", "post /api/plans/{plan_id}/edit",
        "post /api/memories", "patch /api/memories/{memory_id}",
        "patch /api/me/memory", "patch /api/threads/{thread_id}/memory",
        "post /api/webhooks", "patch /api/webhooks/{webhook_id}", "post /api/webhooks/{webhook_id}/replay",
        "patch /api/me/preferences", "patch /api/me/folder", "post /api/me/folder/files",
        "put /api/me/push/subscriptions",
        "patch /api/threads/{thread_id}/listing",
        "put /api/messages/{message_id}/feedback", "post /api/threads/{thread_id}/invitations",
        "post /api/claims", "post /api/auth/register", "post /api/auth/login",
        "post /api/auth/password", "patch /api/me", "post /api/tokens",
        "post /api/tools", "post /api/tools/{name}/decision", "put /api/me/tool-rules",
            "post /api/workspace/repositories",
        "put /api/threads/{thread_id}/workspace/file",
        "put /api/threads/{thread_id}/tool-rules", "post /api/runs/{run_id}/approvals/{call_id}",
        "post /api/console/threads/{shown_thread_id}/fork", "put /api/console/budgets/{account_id}",
        "post /api/console/webhooks/{webhook_id}/replay",
        "post /api/executor/claim", "post /api/executor/heartbeat",
        "post /api/executor/runs/{run_id}/blobs",
        *(f"post /api/executor/runs/{{run_id}}/{action}" for action in ("parts", "approvals", "finish", "release")),
    }  # fmt: skip
    optional = {
        "post /api/threads", "post /api/runs/{run_id}/cancel", "delete /api/me", "post /api/plans/{plan_id}/pause",
        "post /api/schedules/{schedule_id}/run",
        "post /api/webhooks/{webhook_id}/secret", "post /api/connections/{name}",
        *(f"post /api/console/runs/{{shown_run_id}}/{name}" for name in ("cancel", "end", "requeue", "retry")),
        *(f"post /api/console/accounts/{{account_id}}/{name}" for name in ("block", "unblock")),
        "post /api/console/threads/{shown_thread_id}/open",
    }  # fmt: skip
    assert required == dict.fromkeys(needed, True) | dict.fromkeys(optional, False)


async def test_every_example_is_valid(document: dict[str, Any]) -> None:
    checked = 0
    for name, operation in operations(document):
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        for content in [
            described["content"] for described in [*bodies, *operation["responses"].values()] if "content" in described
        ]:
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


VALID: dict[str, list[Any]] = {
    "NewMessage": [{"text": "x"}, {"text": "", "attachments": [str(uuid.uuid4())]}],
    "ThreadChanges": [{"title": None}, {"visibility": "link"}],
    "RunBudget": [{"usd": "0.0001", "tokens": 1, "seconds": 0.1, "toolCalls": 0}, {"usd": "10000", "seconds": 604_800}],
    "NewTool": [{"name": "a-b_c", "description": "x", "parameters": {}, "language": "python", "code": " x"}],
    "ToolRule": [{"pattern": "*", "action": "ask"}],
    "Registration": [{"email": "a@example.com", "password": "abababab"}],
}
INVALID: dict[str, list[Any]] = {
    "NewMessage": [{"text": " \n"}, {"text": "", "attachments": []}, {"text": "\0"}, {"text": "x" * 100_001},
                    {"txt": "x"},
                    {"text": "x", "options": {"budget": {"usdd": 1}}}],
    "ThreadChanges": [{}, {"title": "x" * 201}, {"name": "x"}],
    "RunBudget": [{"usd": "0"}, {"usd": "0.00001"}, {"usd": 10_001}, {"usd": "10000.01"}, {"tokens": 0},
                  {"seconds": 0.01}, {"toolCalls": 1001}],
    "NewTool": [VALID["NewTool"][0] | wrong for wrong in (
        {"name": "a__b"}, {"name": "1"}, {"description": ""}, {"code": " "}, {"timeout": 61}, {"permissions": ["fs"]})],
    "ToolRule": [{"pattern": "", "action": "ask"}, {"pattern": "x" * 201, "action": "ask"}],
    "Registration": [{"email": "a@example.com", "password": "aaaaaaaa"}, {"email": "a@example.com", "password": "ab"}],
}  # fmt: skip


async def test_the_document_has_the_bounds_that_the_server_has(document: dict[str, Any]) -> None:
    for name, values in [*VALID.items(), *INVALID.items()]:
        schema = {"components": document["components"], "$ref": f"#/components/schemas/{name}"}
        good = values is VALID[name]
        assert [value for value in values if jsonschema_rs.is_valid(schema, value) != good] == [], name


async def test_only_request_schemas_forbid_unknown_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    closed = {name for name, schema in schemas.items() if schema.get("additionalProperties") is False}
    assert {
        "NewMessage",
        "RunOptions",
        "RunBudget",
        "ClientFunction",
        "NewThread",
        "ThreadClaim",
        "ToolRule",
    } <= closed
    assert not {"Thread", "Message", "Run", "Snapshot", "Problem", "User"} & closed
