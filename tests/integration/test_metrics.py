"""Metrics: correct, bounded, by Prometheus's conventions, on a separate listener; all queries name existing ones."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from khala.runs.call_telemetry import record_tool_call
from khala.settings import SettingError, from_environment
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.telemetry import gauges
from khala.telemetry.gauges import Gauges
from tests.support.in_process import InProcessServer, khala
from tests.support.ports import free_port
from tests.support.required_programs import program
from tests.support.server import Worker, ended
from tests.support.store import ask, new_thread

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "infra" / "grafana" / "khala.json"
ALERTS = ROOT / "infra" / "prometheus" / "alerts.yml"
PROMETHEUS = ROOT / "infra" / "prometheus" / "prometheus.yml"
NOBODY_THERE = "postgresql://khala@127.0.0.1:1/khala"
OWN_AND_COMMON = re.compile(r"\b((?:khala|process)_[a-z0-9_]+)")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse_samples(text: str) -> Samples:
    """All samples, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample; 0 if it was never counted."""
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


@contextlib.asynccontextmanager
async def server_with_metrics(database_url: str) -> AsyncIterator[tuple[InProcessServer, httpx.AsyncClient]]:
    """A server, and a client for its metrics listener."""
    at = f"127.0.0.1:{free_port()}"
    async with (
        khala(database_url, KHALA_METRICS=at) as server,
        httpx.AsyncClient(base_url=f"http://{at}", timeout=30) as watcher,
    ):
        yield server, watcher


async def scrape(watcher: httpx.AsyncClient) -> Samples:
    return parse_samples((await watcher.get("/metrics")).raise_for_status().text)


async def test_each_event_is_counted_in_the_process_where_it_happened(database_url: str) -> None:
    async with server_with_metrics(database_url) as (server, watcher):
        before = await scrape(watcher)
        thread = await server.thread()
        async with server.observer(thread).following() as observer:
            sent = await thread.send(
                'Do it. /call write_file {"path":"a.txt","content":"hi"} /then /words=20 /pace=100'
            )
            await observer.until(lambda view: sent["assistantMessageId"] in view.finished)
            during = await scrape(watcher)
        run = await thread.run(sent["runId"])
        parts = await thread.parts(sent["runId"])
        await thread.http.get(f"/api/nonsense/{uuid.uuid4()}")
        await thread.http.request("PROPFIND", f"/api/threads/{thread.id}")
        after = await scrape(watcher)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    demo = {"provider": "demo", "model": "demo"}
    assert more("khala_runs_claimed_total", taken_over="no") == 1
    assert more("khala_runs_ended_total", outcome="final") == 1
    assert more("khala_run_first_text_seconds_count") == 1
    assert more("khala_flush_parts_total") == len(parts)
    assert more("khala_flush_bytes_total") >= sum(len(part["data"].get("text", "")) for part in parts)
    assert 1 <= more("khala_flush_seconds_count") == more("khala_flush_runs_count") <= len(parts)
    assert 1 <= more("khala_flush_wait_seconds_count") <= more("khala_flush_seconds_count")
    assert more("khala_flush_wait_seconds_sum") >= more("khala_flush_seconds_sum")
    assert more("khala_claim_seconds_count") >= 1
    assert more("khala_model_calls_total", outcome="tool_calls", **demo) == 1
    assert more("khala_model_calls_total", outcome="stop", **demo) == 1
    assert more("khala_model_tokens_total", kind="input", **demo) == run["finish"]["usage"]["inputTokens"]
    assert more("khala_model_tokens_total", kind="output", **demo) == run["finish"]["usage"]["outputTokens"]
    assert more("khala_tool_calls_total", tool="write_file", outcome="ok") == 1
    assert more("khala_http_requests_total", method="POST", route="/api/threads/{thread_id}/send", status="202") == 1
    assert more("khala_http_requests_total", method="GET", route="none", status="404") == 1
    assert more("khala_http_requests_total", method="other", route="none", status="405") == 1
    read, own = more("khala_feed_read_topics_count"), more("khala_feed_own_topics_count")
    assert 1 <= own <= more("khala_feed_lag_seconds_count") <= read + own
    for name in ("khala_sockets", "khala_subscriptions"):
        assert value(during, name) - value(before, name) == 1
        assert more(name) == 0
    assert value(after, "khala_listener_connected") == 1
    assert value(after, "khala_database_up") == 1
    assert value(after, "khala_table_bytes", table="threads") >= 0
    assert value(after, "khala_database_bytes") > 1 << 20
    assert value(after, "khala_database_connections_most", pool="requests") == 16
    assert value(after, "process_resident_memory_bytes") > 1 << 20
    labels = {label for _, pairs in after for _, label in pairs}
    assert not [label for label in labels if re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", label)], "no label contains an id"


async def test_streaming_a_token_updates_no_metric(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = 0

    def counting(method: Any) -> Any:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal touched
            touched += 1
            return method(*args, **more)

        return counted

    for kind, name in (
        (prometheus_client.Counter, "inc"),
        (prometheus_client.Gauge, "set"),
        (prometheus_client.Gauge, "inc"),
        (prometheus_client.Histogram, "observe"),
    ):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name)))
    async with khala(database_url) as server:
        thread = await server.thread()
        async with server.observer(thread).following() as observer:
            before = touched
            sent = await thread.send("/words=2000 /pace=4000")
            await observer.until(lambda view: sent["assistantMessageId"] in view.finished)
        assert 10 < touched - before < 1000
        assert "word2000" in observer.view.text(sent["assistantMessageId"])


async def test_the_queue_metrics_are_queried_less_often_than_scraped(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Gauges({"inner": db}, lease_seconds=10)
    threads = [await new_thread(db) for _ in range(3)]
    for thread_id in threads:
        await ask(db, thread_id)
    async with db.transaction() as connection:
        await connection.exec_driver_sql("UPDATE runs SET created_at = now() - interval '100 seconds'")
    await own.refresh()
    samples = _samples(own)
    assert value(samples, "khala_queue_runs", status="queued") == 3
    assert value(samples, "khala_queue_runs", status="running") == 0
    assert 100 <= value(samples, "khala_queue_oldest_seconds") < 200
    assert value(samples, "khala_lease_age_seconds") == 0
    assert value(samples, "khala_database_connections_in_use", pool="inner") == 0

    async with db.transaction() as connection:
        await connection.exec_driver_sql(
            "UPDATE runs SET status = 'running', epoch = 1, lease_expires_at = now() - interval '20 seconds'"
            " WHERE id = (SELECT min(id::text)::uuid FROM runs)"
        )
    monkeypatch.setattr(gauges, "MIN_REFRESH_INTERVAL_SECONDS", 3600.0)
    await own.refresh()
    assert _samples(own) == samples
    monkeypatch.setattr(gauges, "MIN_REFRESH_INTERVAL_SECONDS", 0.0)
    await own.refresh()
    samples = _samples(own)
    assert value(samples, "khala_queue_runs", status="queued") == 2
    assert value(samples, "khala_queue_runs", status="running") == 1
    assert 30 <= value(samples, "khala_lease_age_seconds") < 100, "the lease of 10 seconds lapsed 20 seconds ago"


async def test_runs_behind_another_answer_or_already_started_do_not_count_as_oldest(db: Database) -> None:
    own = Gauges({"inner": db}, lease_seconds=10)
    thread_id = await new_thread(db)
    await ask(db, thread_id)
    await ask(db, thread_id)
    async with db.transaction() as connection:
        await connection.exec_driver_sql("UPDATE runs SET created_at = now() - interval '100 seconds'")
        await connection.exec_driver_sql("UPDATE runs SET status = 'queued', epoch = 1 WHERE position < 3")
    await own.refresh()
    samples = _samples(own)
    assert value(samples, "khala_queue_runs", status="queued") == 2
    assert value(samples, "khala_queue_oldest_seconds") == 0


async def test_plans_without_a_driver_and_plans_that_wait_for_a_person_are_counted(db: Database) -> None:
    thread_id = await new_thread(db)
    for status, reason, lease in (
        ("running", None, "now() - interval '31 seconds'"),
        ("stopping", None, "NULL"),
        ("pausing", None, "now() - interval '29 seconds'"),
        ("paused", "requested", "NULL"),
        ("paused", "step_failed", "NULL"),
        ("stopped", None, "NULL"),
    ):
        async with db.driver() as driver:
            await driver.execute(
                "INSERT INTO plans (id, thread_id, status, state, event_seq, revision, edited_revision,"
                " lease_expires_at, updated_at) VALUES ($1, $2, $3, jsonb_build_object('pause_reason', $4::text), 1, 1,"
                f" 1, {lease}, now() - interval '1 hour')",
                uuid.uuid4(),
                thread_id,
                status,
                reason,
            )
    own = Gauges({"inner": db}, lease_seconds=10)
    await own.refresh()
    samples = _samples(own)
    assert value(samples, "khala_plans_undriven") == 2
    assert value(samples, "khala_plans_waiting") == 1


async def test_unknown_values_are_left_out() -> None:
    away = Database(NOBODY_THERE)
    own = Gauges({"inner": away}, lease_seconds=10)
    await own.refresh()
    await away.close()
    samples = _samples(own)
    assert value(samples, "khala_database_up") == 0
    assert ("khala_database_up", ()) in samples
    read = ("khala_queue", "khala_lease", "khala_lock", "khala_transaction", "khala_table", "khala_purge")
    assert not [name for name, _ in samples if name.startswith(read)]


async def test_an_executor_has_metrics_and_readiness_too(database_url: str, tmp_path: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    worker = Worker(tmp_path / "worker.log", {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_METRICS": at})
    with ended(worker):
        worker.start()
        worker.wait_for("Khala works as")
        async with httpx.AsyncClient(base_url=f"http://{at}", timeout=30) as watcher:
            async with asyncio.timeout(20):
                while (ready := await watcher.get("/health/ready")).status_code != 200:
                    await asyncio.sleep(0.1)
            samples = await scrape(watcher)
        well = dict.fromkeys(("ok", "database", "writable", "feed", "blobs", "disk"), True)
        assert ready.json() == well | {"stopping": False}
        assert value(samples, "khala_executor_places") == 200
        assert worker.kill(signal.SIGTERM) == 0
    assert worker.crashes() == []


async def test_the_endpoint_serves_scrapers_and_health_checks_only(database_url: str) -> None:
    async with server_with_metrics(database_url) as (server, watcher):
        plain = await watcher.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
        opened = await watcher.get("/metrics", headers=headers)
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        families = parse_openmetrics(opened.text)  # type: ignore[no-untyped-call]  # the library forgot its types
        assert {family.name for family in families} >= {"khala_flush_seconds", "khala_queue_runs"}
        head = await watcher.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert (await watcher.get("/health/live")).json() == {"ok": True}
        assert (await watcher.post("/metrics", content=b"x" * 1000)).status_code == 405
        assert (await watcher.get("/api/threads")).status_code == 404
        assert (await server.http.get("/metrics")).status_code == 404, "the public listener does not serve metrics"


async def test_a_metrics_port_in_use_is_reported_and_the_server_does_not_start(database_url: str) -> None:
    async with server_with_metrics(database_url) as (_, watcher):
        with pytest.raises(OSError, match="in use"):
            async with khala(database_url, KHALA_METRICS=watcher.base_url.netloc.decode()):
                pytest.fail("it serves")


def test_open_ended_labels_stay_bounded() -> None:
    bounded = metrics.BoundedLabel(2)
    assert [bounded(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", metrics.OTHER, "a", metrics.OTHER]


def test_tool_metrics_are_labelled_by_name_only_for_built_in_tools() -> None:
    def counted() -> set[str]:
        return {sample.labels["tool"] for family in metrics.TOOL_CALLS.collect() for sample in family.samples}

    before = counted()
    for name, source in (
        ("grep", "builtin"),
        ("jira__x1", "jira"),
        ("jira__x2", "jira"),
        ("mine", "user"),
        ("no", None),
    ):
        record_tool_call(name, source, "call_1", None, 5)
    assert counted() - before <= {"grep", "mcp:jira", "user", "none"} <= counted()


@pytest.mark.parametrize(
    ("given", "address"),
    [("", None), ("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:9464", ("::1", 9464)), ("0.0.0.0:0", ("0.0.0.0", 0))],
)
def test_the_metrics_address_is_a_host_and_a_port(given: str, address: tuple[str, int] | None) -> None:
    assert from_environment({"KHALA_METRICS": given}).process.metrics == address


@pytest.mark.parametrize("given", ["9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_an_invalid_metrics_address_is_refused(given: str) -> None:
    with pytest.raises(SettingError, match=r"KHALA_METRICS must be like 127.0.0.1:9464"):
        from_environment({"KHALA_METRICS": given})


def test_metric_names_follow_prometheus_conventions() -> None:
    own = {name for name in exposed_names() if name.startswith("khala_")}
    assert len(own) > 40
    counters = {f"{family.name}_total" for family in metrics.REGISTRY.collect() if family.type == "counter"}
    assert {name for name in own if name.endswith("_total")} == {name for name in counters if name in own}
    assert [name for name in own if "milli" in name or "_ms" in name] == []


def exposed_names() -> set[str]:
    """The names of all samples that a process can expose."""
    families = [
        *metrics.REGISTRY.collect(),
        *metrics.database_metrics(0, 0, 0, 0, 0),
        *metrics.plan_metrics(0, 0),
        *metrics.webhook_metrics(0, 0, 0),
        *metrics.activity_metrics(0, 0, 0),
        *metrics.storage_metrics(0, 0, 0),
        *metrics.search_metrics(0),
        *metrics.table_metrics([("any", 0, 0, 0, 0)]),
        *metrics.freeze_metric([("any", 0)]),
        *metrics.database_up_metric(ok=True),
        *metrics.pool_metrics([("inner", 0, 0)]),
    ]
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    return {family.name + ending for family in families for ending in kinds[family.type]}


def metric_queries() -> Iterator[str]:
    """The queries of the dashboard and of the alerts."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from re.findall(r"(?m)^ +expr: (.+)$", ALERTS.read_text())


def test_the_dashboard_and_the_alerts_query_only_existing_metrics() -> None:
    queried = [name for expression in metric_queries() for name in OWN_AND_COMMON.findall(expression)]
    assert len(queried) > 40
    assert sorted(set(queried) - exposed_names()) == []


def test_the_alerts_watch_what_can_go_wrong() -> None:
    alerts = ALERTS.read_text()
    named = re.findall(r"(?m)^ +- alert: (\w+)$", alerts)
    assert len(named) == len(set(named)) >= 10
    assert alerts.count("severity:") == alerts.count("summary:") == alerts.count("action:") == len(named)


def test_panels_have_distinct_titles_and_positions() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


@pytest.mark.parametrize(("kind", "path"), [("rules", ALERTS), ("config", PROMETHEUS)])
def test_promtool_accepts_the_alerts_and_the_configuration(kind: str, path: Path) -> None:
    done = subprocess.run(
        [program("promtool"), "check", kind, path], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def _samples(own: Gauges) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in own.collect()
        for sample in family.samples
    }
