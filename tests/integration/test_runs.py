"""Runs from send to finish, against a local server that speaks a real provider's protocol."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from khala.domain.fold import TextBlock
from khala.runs import model_turn
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.runs.run_queue import claim
from tests.support.callers import owned_thread, person
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Reply, Server, serving
from tests.support.store import KEY, ask, batch, ending, lease_of, new_thread, write

MODEL = "openai:gpt-4o-mini"


@contextlib.asynccontextmanager
async def khala_with_provider(
    database_url: str, *replies: Reply, **env: str
) -> AsyncIterator[tuple[InProcessServer, Server]]:
    """Khala, with a scripted provider behind it."""
    async with serving(*replies) as provider:
        settings = {"KHALA_MODEL": MODEL, "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key"}
        async with khala(database_url, with_executor=True, **(settings | env)) as server:
            yield server, provider
        db = Database(database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


async def ask_and_wait(
    thread: Thread, question: str = "Hello?"
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Send, wait for the end, and return the run, the answer and its parts."""
    sent = await thread.send(question)
    run = await thread.ended(sent["runId"])
    message = next(m for m in (await thread.snapshot())["messages"] if m["id"] == sent["assistantMessageId"])
    return run, message, await thread.parts(sent["runId"])


def kinds(parts: list[dict[str, Any]]) -> list[str]:
    return [part["kind"] for part in parts]


async def receipts(thread: Thread, run_id: str) -> list[dict[str, Any]]:
    found = await thread.http.get(f"/api/runs/{run_id}/receipts", headers=thread.headers)
    return list(found.raise_for_status().json()["items"])


async def test_the_finish_has_usage_cost_model_and_times(database_url: str) -> None:
    async with khala_with_provider(database_url, Reply(tokens=("Hel", "lo"), pace=50, usage=(1000, 2000))) as (
        server,
        _,
    ):
        run, message, parts = await ask_and_wait(await server.thread())
    finish = run["finish"]
    assert (run["status"], message["status"], text_of(message)) == ("final", "final", "Hello")
    assert kinds(parts)[-1] == "finish"
    assert parts[-1]["data"] == finish == message["finish"]
    assert finish["reason"] == "stop"
    assert finish["usage"] == {"inputTokens": 1000, "outputTokens": 2000}
    assert (finish["model"], finish["provider"]) == ("gpt-4o-mini", "openai")
    assert Decimal(finish["costUsd"]) > 0
    assert 0 < finish["timeToFirstTokenMs"] <= finish["totalMs"]


async def test_every_model_call_leaves_a_receipt(database_url: str) -> None:
    replies = (Reply(status=500), Reply(tokens=("ok",), usage=(10, 20)))
    async with khala_with_provider(database_url, *replies) as (server, _):
        thread = await server.thread()
        run, _, _ = await ask_and_wait(thread)
        found = await receipts(thread, run["id"])
    assert [result["data"]["outcome"] for result in found] == ["unavailable", "stop"]
    assert [result["seq"] for result in found] == [0, 1]
    assert found[1]["data"]["usage"] == {"inputTokens": 10, "outputTokens": 20}
    assert all(result["type"] == "model" and result["data"]["model"] == "gpt-4o-mini" for result in found)
    assert found[0]["data"]["estimated"]
    assert not found[1]["data"]["estimated"]
    assert Decimal(found[1]["costUsd"]) > 0
    assert "E" not in found[1]["costUsd"]


async def test_a_run_that_is_handed_over_keeps_the_receipt_of_the_call_it_was_in(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        async with server.observer(thread).following() as observer:
            sent = await thread.send("/words=9 /hang=3")
            await observer.until(lambda seen: seen.text(sent["assistantMessageId"]).startswith("word1 "))
    db = Database(database_url)
    async with db.driver() as driver:
        status = await driver.fetchval("SELECT status FROM runs")
        found = await driver.fetch("SELECT data->>'outcome' AS outcome FROM receipts")
    await db.close()
    assert (status, [row["outcome"] for row in found]) == ("queued", ["canceled"])


async def test_a_rate_limited_call_is_retried_after_the_time_that_the_provider_names(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_turn, "MIN_NOTICED_WAIT_SECONDS", 1.0)
    replies = (Reply(status=429, headers={"retry-after": "1"}), Reply(tokens=("later",)))
    async with khala_with_provider(database_url, *replies) as (server, provider):
        run, message, _ = await ask_and_wait(await server.thread())
    assert (run["status"], text_of(message)) == ("final", "later")
    assert provider.calls[1].began - provider.calls[0].began >= 1.0
    notice, _ = message["content"]
    assert (notice["type"], notice["code"]) == ("notice", "rate_limited")
    waited = datetime.fromisoformat(notice["until"]) - datetime.fromisoformat(message["createdAt"])
    assert 1 <= waited.total_seconds() < 30


async def test_a_failing_model_is_replaced_by_the_fallback_with_a_notice(database_url: str) -> None:
    replies = (Reply(status=400), Reply(tokens=("from the fallback",)))
    async with khala_with_provider(database_url, *replies, KHALA_FALLBACK_MODELS="openai:gpt-4o") as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread())
    assert (run["status"], text_of(message)) == ("final", "from the fallback")
    assert run["finish"]["model"] == "gpt-4o"
    assert [call.body["model"] for call in provider.calls] == ["gpt-4o-mini", "gpt-4o"]
    assert "notice" in kinds(parts)
    assert [block["type"] for block in message["content"]] == ["notice", "text"]


async def test_a_connection_lost_midstream_keeps_the_text_with_an_error(database_url: str) -> None:
    reply = Reply(tokens=("half ", "an ", "answer"), pace=50, drop_after=2)
    async with khala_with_provider(database_url, reply) as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread())
    assert run["status"] == message["status"] == "error"
    assert run["finish"]["reason"] == "error"
    assert text_of(message).startswith("half an \n\n")
    assert len(text_of(message)) > len("half an \n\n")
    assert kinds(parts)[-2:] == ["error", "finish"]
    assert parts[-2]["data"]["code"] == "connection_lost"
    assert len(provider.calls) == 1
    assert await revisions(database_url, "text-delta", "error", "finish") == [1, 1]


async def test_no_other_model_starts_over_after_half_an_answer(database_url: str) -> None:
    replies = (Reply(tokens=("half ", "an ", "answer"), pace=50, drop_after=2), Reply(tokens=("half an answer",)))
    async with khala_with_provider(database_url, *replies, KHALA_FALLBACK_MODELS="openai:gpt-4o") as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread())
    assert run["status"] == "error"
    assert text_of(message).count("half") == 1
    assert "notice" not in kinds(parts)
    assert len(provider.calls) == 1


async def revisions(database_url: str, *kinds: str) -> list[int]:
    """The number of distinct revisions of the last parts of these kinds, and the number of error parts."""
    db = Database(database_url)
    async with db.driver() as driver:
        last = await driver.fetch("SELECT kind, max(revision) AS at FROM message_parts GROUP BY kind")
        errors = await driver.fetchval("SELECT count(*) FROM message_parts WHERE kind = 'error'")
    await db.close()
    return [len({row["at"] for row in last if row["kind"] in kinds}), errors]


async def test_a_provider_that_keeps_failing_ends_as_an_error_with_visible_text(database_url: str) -> None:
    async with khala_with_provider(database_url, *[Reply(status=500)] * 3) as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread())
    assert run["status"] == message["status"] == "error"
    assert text_of(message).strip()
    assert kinds(parts) == ["text-delta", "error", "finish"]
    assert len(provider.calls) == 3


async def test_a_run_says_why_a_provider_refused_it(database_url: str) -> None:
    async with khala_with_provider(database_url, Reply(status=401), Reply(status=400)) as (server, _):
        _, _, parts = await ask_and_wait(await server.thread())
        assert (parts[-2]["data"]["code"], parts[-2]["data"]["cause"]) == ("refused", "invalid_key")
        _, _, parts = await ask_and_wait(await server.thread())
    assert parts[-2]["data"]["code"] == "refused"
    assert "cause" not in parts[-2]["data"]


async def test_a_question_longer_than_the_context_window_ends_as_an_error_without_a_call(database_url: str) -> None:
    async with khala_with_provider(database_url, KHALA_CONTEXT_TOKENS="500") as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread(), "word " * 5000)
    assert run["status"] == "error"
    assert "longer" in text_of(message)
    assert parts[-2]["data"]["code"] == "context_exceeded"
    assert provider.calls == []


async def test_after_an_empty_answer_the_fallback_is_called_once(database_url: str) -> None:
    replies = (Reply(tokens=()), Reply(tokens=("something",)))
    async with khala_with_provider(database_url, *replies, KHALA_FALLBACK_MODELS="openai:gpt-4o") as (server, provider):
        run, message, _ = await ask_and_wait(await server.thread())
    assert (run["status"], text_of(message)) == ("final", "something")
    assert len(provider.calls) == 2


async def test_a_run_without_any_answer_ends_with_a_visible_error(database_url: str) -> None:
    replies = (Reply(tokens=()), Reply(tokens=()))
    async with khala_with_provider(database_url, *replies, KHALA_FALLBACK_MODELS="openai:gpt-4o") as (server, provider):
        run, message, parts = await ask_and_wait(await server.thread())
    assert run["status"] == "error"
    assert text_of(message) == "No response. Please try again."
    assert parts[-2]["data"]["code"] == "no_response"
    assert len(provider.calls) == 2


async def test_reasoning_is_not_stored_unless_it_is_switched_on(database_url: str) -> None:
    reply = Reply(reasoning=("let me ", "think"), tokens=("done",))
    async with khala_with_provider(database_url, reply, reply) as (server, _):
        _, message, parts = await ask_and_wait(await server.thread())
    assert "reasoning-delta" not in kinds(parts)
    assert "reasoningMs" not in message["finish"]
    assert text_of(message) == "done"
    async with khala_with_provider(database_url, reply, KHALA_REASONING="1") as (server, _):
        _, message, parts = await ask_and_wait(await server.thread())
    assert "".join(part["data"]["text"] for part in parts if part["kind"] == "reasoning-delta") == "let me think"
    assert message["finish"]["reasoningMs"] > 0
    assert text_of(message) == "done"


async def test_cancel_closes_the_connection_to_a_silent_provider_and_keeps_the_text(database_url: str) -> None:
    reply = Reply(tokens=("some ", "text ", "never"), hang_after=2)
    async with khala_with_provider(database_url, reply) as (server, provider):
        thread = await server.thread()
        async with server.observer(thread).following() as observer:
            sent = await thread.send("Hello?")
            await observer.until(lambda seen: seen.text(sent["assistantMessageId"]) == "some text ")
            canceled = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
            assert canceled.status_code == 202
            call = await provider.call(0)
            await asyncio.wait_for(call.gone.wait(), 1.0)
            await observer.until(lambda seen: sent["assistantMessageId"] in seen.finished, within=1.0)
        run = await thread.ended(sent["runId"])
        again = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
        assert (again.status_code, again.json()) == (200, run)
        parts = await thread.parts(sent["runId"])
    assert (run["status"], run["finish"]["reason"]) == ("canceled", "canceled")
    assert kinds(parts) == ["text-delta", "finish"] or kinds(parts) == ["text-delta", "text-delta", "finish"]
    assert run["finish"]["usage"]["outputTokens"] > 0


async def test_a_queued_run_is_canceled_at_once_without_an_executor(database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("Hello?")
        canceled = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
        assert (canceled.status_code, canceled.json()["status"]) == (202, "canceled")
        assert kinds(await thread.parts(sent["runId"])) == ["finish"]


async def test_the_newest_history_reaches_the_prompt_within_the_limit(database_url: str) -> None:
    async with khala_with_provider(database_url, KHALA_CONTEXT_TOKENS="500", KHALA_SYSTEM_PROMPT="Be brief.") as (
        server,
        provider,
    ):
        thread = await server.thread()
        for number in range(8):
            await ask_and_wait(thread, f"question {number} " + "x" * 400)
        prompt = provider.calls[-1].body["messages"]
    assert prompt[0] == {"role": "system", "content": "Be brief."}
    assert prompt[-1]["content"].startswith("question 7")
    assert any(str(message["content"]).startswith("question 6") for message in prompt)
    assert not any(str(entry["content"]).startswith("question 0") for entry in prompt)


async def test_more_than_a_hundred_messages_and_a_run_of_two_thousand_parts_reach_the_prompt(
    database_url: str, db: Database
) -> None:
    thread_id = await new_thread(db)
    for number in range(60):
        lease = await lease_of(db, thread_id)
        await write(db, batch(lease, 0, f"answer {number}"))
        await write(db, ending(lease, 1, (TextBlock(text=f"answer {number}"),)))
    lease = await lease_of(db, thread_id)
    words = [f"word{number} " for number in range(2_100)]
    for first in range(0, len(words), 300):
        await write(db, batch(lease, first, *words[first : first + 300]))
    await write(db, ending(lease, len(words), (TextBlock(text="".join(words)),)))
    async with khala_with_provider(database_url) as (server, provider):
        thread = Thread(server.http, str(thread_id), KEY)
        await ask_and_wait(thread, "What came before?")
        contents = [
            str(message["content"]) for message in provider.calls[-1].body["messages"] if message["role"] != "system"
        ]
        shown = (await thread.snapshot())["messages"]
    assert contents[-2:] == ["".join(words), "What came before?"]
    assert [content for content in contents if content.startswith("answer")] == [
        f"answer {number}" for number in range(60)
    ]
    assert len(contents) == 123
    assert [text_of(message) for message in shown[-3:-1]] == ["".join(words), "What came before?"]


async def test_an_edited_question_gets_only_the_history_of_its_branch(database_url: str) -> None:
    async with khala_with_provider(database_url) as (server, provider):
        thread = await server.thread()
        first = await thread.send("first question")
        await thread.ended(first["runId"])
        await ask_and_wait(thread, "second question")
        sent = await thread.send("another second question", parentId=first["assistantMessageId"])
        await thread.ended(sent["runId"])
        contents = [message["content"] for message in provider.calls[-1].body["messages"]]
    assert "first question" in contents
    assert "another second question" in contents
    assert "second question" not in contents


async def test_runs_of_one_thread_are_executed_in_order_and_one_at_a_time(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        sent = [await thread.send(f"/words=20 /pace=100 {n}", options={"ifBusy": "queue"}) for n in range(3)]
        for each_sent in sent:
            await thread.ended(each_sent["runId"])
        parts = [await thread.parts(response["runId"]) for response in sent]
    for before, after in itertools.pairwise(parts):
        assert before[-1]["createdAt"] <= after[0]["createdAt"]


async def test_an_interrupting_send_cancels_the_running_run_and_is_answered(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        first = await thread.send("/hang=3")
        second = await thread.send("/words=3 /pace=0", options={"ifBusy": "interrupt"})
        assert (await thread.ended(first["runId"]))["status"] == "canceled"
        assert (await thread.ended(second["runId"]))["status"] == "final"


async def test_no_sweep_for_runs_fails_while_many_of_them_end(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with khala(database_url) as server:
        threads = [await server.thread() for _ in range(20)]
        sent = await asyncio.gather(*(thread.send("/words=2 /pace=0") for thread in threads))
        await asyncio.gather(*(thread.ended(response["runId"]) for thread, response in zip(threads, sent, strict=True)))
    assert "crashed" not in "".join(capsys.readouterr())


async def test_claims_are_fair_between_owners(db: Database) -> None:
    greedy, modest = await new_thread(db), await new_thread(db)
    others = [await new_thread(db) for _ in range(3)]
    async with db.transaction() as connection:
        for thread_id in others:
            await connection.execute(
                text("UPDATE threads SET owner_id = :o WHERE id = :t"), {"o": greedy, "t": thread_id}
            )
    for thread_id in (*others, modest):
        await ask(db, thread_id)
    async with db.driver() as driver:
        claimed = await claim(driver, most=2, owner="test", lease_seconds=10)
    assert {claimed_run.lease.thread_id for claimed_run in claimed} == {others[0], modest}


async def test_runs_of_guests_leave_slots_for_users(db: Database) -> None:
    for _ in range(4):
        await ask(db, await new_thread(db))
    owner = await person(db)
    await ask(db, await owned_thread(db, owner), caller=owner.caller)
    async with db.driver() as driver:
        claimed = await claim(driver, most=10, owner="a", lease_seconds=10, max_guests=2)
        assert sorted(claimed_run.guest for claimed_run in claimed) == [False, True, True]
        assert await claim(driver, most=10, owner="a", lease_seconds=10, max_guests=0) == []
        assert len(await claim(driver, most=10, owner="a", lease_seconds=10)) == 2


async def test_an_executor_does_not_claim_a_run_that_it_executes_already(db: Database) -> None:
    sent = await ask(db, await new_thread(db))
    async with db.driver() as driver:
        assert await claim(driver, most=9, owner="a", lease_seconds=10, held=[sent.run_id]) == []
        assert len(await claim(driver, most=9, owner="b", lease_seconds=10)) == 1


async def test_no_run_is_claimed_twice_by_many_executors_at_once(db: Database) -> None:
    run_ids = {(await ask(db, await new_thread(db))).run_id for _ in range(40)}

    async def work(name: str) -> list[Any]:
        mine: list[Any] = []
        for _ in range(40):
            async with db.driver() as driver:
                mine += [claimed.lease.run_id for claimed in await claim(driver, most=3, owner=name, lease_seconds=30)]
        return mine

    found = await asyncio.gather(*(work(f"executor {n}") for n in range(6)))
    runs = [run_id for mine in found for run_id in mine]
    assert len(runs) == len(set(runs))
    assert set(runs) == run_ids


async def test_a_run_that_never_ends_is_given_up_after_its_attempts(database_url: str) -> None:
    db = Database(database_url)
    lease = await lease_of(db, await new_thread(db))
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE runs SET lost = 7, lease_expires_at = now() - interval '1 second'"))
    async with khala(database_url):
        async with asyncio.timeout(10):
            while True:
                async with db.driver() as driver:
                    row = await driver.fetchrow("SELECT status, finish FROM runs WHERE id = $1", lease.run_id)
                if row["status"] != "running":
                    break
                await asyncio.sleep(0.05)
    await db.close()
    assert (row["status"], json.loads(row["finish"])["reason"]) == ("error", "error")


async def test_a_lapsed_lease_is_taken_over_and_the_answer_continues_where_it_was(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("/words=30 /pace=0")
        async with db.driver() as driver:
            (dead,) = await claim(driver, most=1, owner="dead", lease_seconds=0.2)
        await write(db, batch(dead.lease, 0, "word1 word2 wo"))
        async with khala(database_url):
            run = await thread.ended(sent["runId"], within=10)
        message = (await thread.snapshot())["messages"][-1]
    await db.close()
    assert (run["status"], run["attempt"]) == ("final", 2)
    assert text_of(message) == " ".join(f"word{n}" for n in range(1, 31))
    assert [block["type"] for block in message["content"]] == ["text", "notice", "text"]
