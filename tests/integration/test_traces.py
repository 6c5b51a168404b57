"""Traces: from a request, over its run in another process, to the delivery, exported to an OTLP collector."""

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind

from khala.domain.errors import InvalidInput
from khala.settings import SettingError, from_environment
from khala.signals import traces
from khala.store.postgres.database import Database
from tests.support.client import Observer, Thread
from tests.support.in_process import khala
from tests.support.json_lines import objects
from tests.support.otlp import Collector, Received, collecting
from tests.support.ports import free_port
from tests.support.server import Server, Worker, ended

TOOL = 'Do it. /call write_file {"path":"a.txt","content":"hi"}'
SPAN = "00f067aa0ba902b7"


def new_trace() -> str:
    return uuid.uuid4().hex


def sampled(traceparent: str) -> bool:
    return bool(int(traceparent.rpartition("-")[2], 16) & 1)


def only_span(found: list[Received], name: str, **facts: Any) -> Received:
    """The only span with this name and these attributes, which are named without the prefix `khala.`."""
    fitting = [
        span
        for span in found
        if span.name == name and all(span.facts.get(f"khala.{key.replace('__', '.')}") == facts[key] for key in facts)
    ]
    assert len(fitting) == 1, [(span.name, span.facts) for span in found]
    return fitting[0]


def log_lines(process: Server | Worker, event: str) -> list[dict[str, Any]]:
    """The log lines of these events."""
    return [line for line in objects(process.log) if line["event"] == event]


def delivered(collector: Collector, trace: str) -> bool:
    return any(span.facts.get("khala.delivery") == "end" for span in collector.of(trace))


async def send(thread: Thread, text: str, traceparent: str) -> dict[str, Any]:
    headers = {**thread.headers, "traceparent": traceparent}
    sent = await thread.http.post(f"/api/threads/{thread.id}/send", json={"text": text}, headers=headers)
    return dict(sent.raise_for_status().json())


def environment(database_url: str, collector: str) -> dict[str, str]:
    return {
        "DATABASE_URL": database_url,
        "KHALA_MODEL": "demo",
        "KHALA_GRACE_SECONDS": "0",
        "KHALA_LEASE_SECONDS": "1.2",
        "KHALA_COOLDOWN_MS": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


async def test_a_send_is_one_trace_from_its_request_over_another_process_to_the_delivery(
    database_url: str, tmp_path: Path
) -> None:
    trace, unsampled = new_trace(), new_trace()
    with collecting() as collector:
        env = environment(database_url, collector.url)
        server, worker = Server(tmp_path / "server.log", env, "--no-executor"), Worker(tmp_path / "worker.log", env)
        with ended(server, worker):
            worker.start()
            server.start()
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                thread = await Thread.create(http)
                async with Observer(server.socket_url, thread).following():
                    quiet = await send(thread, "Hello?", f"00-{unsampled}-{SPAN}-00")
                    await thread.ended(quiet["runId"])
                    sent = await send(thread, TOOL, f"00-{trace}-{SPAN}-01")
                    await thread.ended(sent["runId"])
                    collector.wait(lambda: delivered(collector, trace))
        found = collector.of(trace)

    request = only_span(found, "POST /api/threads/{thread_id}/send")
    run = only_span(found, "run", run__attempt=1)
    assert request.parent == SPAN
    assert run.parent == request.id
    assert run.facts["khala.run.id"] == sent["runId"]
    assert request.process["service.name"] == run.process["service.name"] == "khala"
    assert request.process["service.instance.id"] != run.process["service.instance.id"]

    inside = [span for span in found if span.parent == run.id]
    assert [span.name for span in inside if span.name != "flush"] == [
        "chat demo",
        "execute_tool write_file",
        "chat demo",
    ]
    assert {"first_text", "end"} == {span.facts["khala.delivery"] for span in found if span.name == "deliver"}
    flushes = [span for span in inside if span.name == "flush"]
    first = next(span for span in flushes if span.facts["khala.flush.first_text"])
    assert flushes[-1].facts["khala.flush.ends_run"]

    for kind, flush in (("first_text", first), ("end", flushes[-1])):
        delivery = only_span(found, "deliver", delivery=kind)
        assert delivery.parent == request.id
        assert delivery.process == request.process
        # Observers may receive a commit before the executor gets its acknowledgement.
        assert request.began < run.began < flush.began < min(flush.ended, delivery.ended)
    assert not any(span.failed for span in found)
    assert {span.id for span in found} == {request.id, run.id} | {
        span.id for span in found if span.parent in (request.id, run.id)
    }
    assert collector.of(unsampled) == [], "the request disabled sampling"

    (request_span,) = [
        line for line in log_lines(server, "request") if line.get("run_id") == sent["runId"] and line["status"] == 202
    ]
    (end_event,) = [line for line in log_lines(worker, "run_ended") if line["run_id"] == sent["runId"]]
    assert request_span["trace_id"] == end_event["trace_id"] == trace
    assert request_span["thread_id"] == end_event["thread_id"] == thread.id
    assert request_span["request_id"]


async def test_a_run_that_is_taken_over_continues_its_trace(database_url: str, tmp_path: Path) -> None:
    trace = new_trace()
    with collecting() as collector:
        env = environment(database_url, collector.url)
        workers = [Worker(tmp_path / f"worker{at}.log", env) for at in range(2)]
        with ended(*workers):
            workers[0].start()
            async with khala(database_url, with_executor=False) as server:
                thread = await server.thread()
                sent = await thread.send("/words=400 /pace=40")
                await _give_trace(database_url, sent["runId"], f"00-{trace}-{SPAN}-01")
                async with server.observer(thread).following() as observer:
                    await observer.until(lambda view: "word3 " in view.text(sent["assistantMessageId"]))
                    workers[0].kill()
                    workers[1].start()
                    await observer.until(lambda view: "word60 " in view.text(sent["assistantMessageId"]), within=30)
                await thread.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
                await thread.ended(sent["runId"])
        collector.wait(lambda: any(span.facts.get("khala.run.attempt") == 2 for span in collector.of(trace)))
        run = only_span(collector.of(trace), "run", run__attempt=2)
    assert run.parent == SPAN


async def test_an_unreachable_collector_prevents_no_run_and_no_process_from_ending(
    database_url: str, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker.log", environment(database_url, f"http://127.0.0.1:{free_port()}"))
    with ended(worker):
        worker.start()
        async with khala(database_url, with_executor=False) as server:
            thread = await server.thread()
            run = await thread.ended((await thread.send("/pace=0 Hello?"))["runId"])
        assert run["status"] == "final"
        assert worker.kill(signal.SIGTERM) == 0
    assert worker.crashes() == []


async def test_without_a_collector_a_run_belongs_to_no_trace(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        sent = await send(thread, "Hello?", f"00-{new_trace()}-{SPAN}-01")
        assert (await thread.ended(sent["runId"]))["status"] == "final"
    assert not traces.enabled()
    assert await _trace_of(database_url, sent["runId"]) is None


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """Traces in this process, all of them sampled unless the request says otherwise."""
    yield from _tracing(TracerProvider(shutdown_on_exit=False))


def _tracing(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.start(provider.get_tracer("test"))
    yield exporter
    traces.stop()
    provider.shutdown()


@pytest.mark.parametrize("bad", [None, "", "junk", f"00-{'0' * 32}-{SPAN}-01", f"ff-{'1' * 32}-{SPAN}-01", "00-é-é-01"])
def test_an_invalid_traceparent_starts_a_new_trace(exported: InMemorySpanExporter, bad: str | None) -> None:
    with traces.span("asked", SpanKind.SERVER, bad, {}):
        inside = traces.traceparent()
    (span,) = exported.get_finished_spans()
    assert span.parent is None
    assert span.context is not None
    assert inside is not None
    assert inside.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    assert sampled(inside)


def test_a_failure_is_recorded_in_its_span_and_ends_it(exported: InMemorySpanExporter) -> None:
    def fail() -> None:
        with traces.span("asked", SpanKind.SERVER, None, {}):
            traces.record("chat", 1.5, {"gen_ai.request.model": "demo"}, error="overloaded")
            raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        fail()
    chat, asked_span = exported.get_finished_spans()
    assert chat.parent == asked_span.context
    assert chat.attributes == {"gen_ai.request.model": "demo", "error.type": "overloaded"}
    assert not chat.status.is_ok
    assert chat.end_time is not None
    assert chat.start_time is not None
    assert chat.end_time - chat.start_time == 1_500_000_000
    assert asked_span.attributes == {"error.type": "InvalidInput"}
    assert not asked_span.status.is_ok
    assert traces.trace_id() is None


def test_a_trace_that_is_not_sampled_is_passed_on_as_such() -> None:
    tracing = _tracing(TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False))
    exporter = next(tracing)
    with traces.span("asked", SpanKind.SERVER, None, {}):
        assert not sampled(str(traces.traceparent())), "the executor must not sample it either"
    assert exporter.get_finished_spans() == ()
    assert list(tracing) == []


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_switch_traces_on_and_off(env: dict[str, str], on: bool) -> None:
    assert from_environment(env).traces is on


def test_an_unsupported_exporter_protocol_is_refused() -> None:
    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_PROTOCOL must be one of http/protobuf"):
        from_environment(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


async def _trace_of(database_url: str, run_id: str) -> str | None:
    db = Database(database_url)
    try:
        async with db.driver() as driver:
            found: str | None = await driver.fetchval("SELECT traceparent FROM runs WHERE id = $1", run_id)
            return found
    finally:
        await db.close()


async def _give_trace(database_url: str, run_id: str, traceparent: str) -> None:
    """Store the traceparent, as a process with tracing would."""
    db = Database(database_url)
    try:
        async with db.driver() as driver:
            await driver.execute("UPDATE runs SET traceparent = $2 WHERE id = $1", run_id, traceparent)
    finally:
        await db.close()
