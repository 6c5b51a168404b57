"""Tests of the benchmark on the smallest workload. They do not check how fast anything is."""

import msgspec
import pytest
from msgspec.structs import replace

from tests.bench import __main__ as command
from tests.bench import adapters
from tests.bench.bench import bench, open_environment
from tests.bench.compare import compare
from tests.bench.figures import Latency
from tests.bench.growth import fit
from tests.bench.idle import Idle
from tests.bench.late_join import Late
from tests.bench.report import LINES, Report, table
from tests.bench.short_runs import ShortRuns
from tests.bench.soak import trend
from tests.bench.targets import Target, Targets
from tests.bench.workload import Options, Workload


@pytest.mark.timeout(240)  # it starts a dozen processes, perhaps while other tests run
async def test_a_tiny_workload_is_complete_and_compared(postgres_url: str, template: str) -> None:
    async with open_environment(postgres_url, template) as environment:
        report = await bench([Workload(2, 2)], Options(seconds=1.0), environment)
    assert report.problems == []
    row = msgspec.to_builtins(report)["rows"][0]
    for name in ("khala", "naive_flush", "naive_token"):
        system = row[name]
        assert system["delivery"]["deltas"] > 0
        for latency in (system["first"], system["token"], system["newest"], system["written"], system["committed"]):
            assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["p999_ms"]
        assert system["cpu"].keys() == {"server", "web", "executor", "database", "model", "driver"}
        assert all(spent > 0 for spent in (*system["cpu"].values(), *system["cpu_by_tokens"].values()))
        assert system["memory"].keys() == {"web", "executor", "database"}
        assert system["storage"]["parts"] > 0
        assert system["storage"]["appends_per_second"] > 0
        assert system["storage"]["wal_bytes_per_1000_parts"] > 0
        assert system["storage"]["size_bytes_per_1000_parts"] is not None
    assert row["khala"]["delivery"]["frames"] == row["bare"]["delivery"]["frames"]
    assert row["naive_token"]["delivery"]["deltas"] == 2 * 2 * 30
    assert all(ratio > 0 for ratio in row["ratios"].values())
    assert all(line.cell(report.rows[0]) is not None for line in LINES)
    assert {"cores", "python", "postgres", "commit"} <= report.machine.keys()
    assert "2×2" in table(report)
    saved = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert saved == report
    assert len(compare(saved, report)) == len(LINES)
    assert not any(figure.worse for figure in compare(saved, report))
    worse_ratios = replace(report.rows[0].ratios, flush_cpu_by_tokens=1000.0)
    report.rows = [replace(report.rows[0], ratios=worse_ratios)]
    assert [figure.line.kind for figure in compare(saved, report) if figure.worse] == ["ratio"]


def test_memory_that_grows_is_not_called_flat() -> None:
    assert trend([(second, 100_000_000 + second % 2) for second in range(120)]).flat
    growing = trend([(second, 100_000_000 + 50_000 * second) for second in range(120)])
    assert not growing.flat
    assert growing.kib_per_minute == pytest.approx(50_000 * 60 / 1024)


def test_a_fit_finds_the_exact_line_through_points() -> None:
    found = fit([(1, 3.0), (2, 5.0), (10, 21.0)])
    assert (found.slope, found.intercept, found.r_squared) == pytest.approx((2.0, 1.0, 1.0))


@pytest.mark.parametrize(("measured", "code"), [(0.39, 0), (0.4, 0), (0.41, 1), (None, 1)])
def test_the_bench_exits_with_one_if_a_target_is_missed_or_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], measured: float | None, code: int
) -> None:
    quick = Latency(p50_ms=1.0, p99_ms=1.0, p999_ms=1.0)
    found = Targets(
        targets=[
            Target(name="commits of parts", unit="/s", limit=40.0, measured=10.0),
            Target(name="server CPU per delta", unit="×", limit=0.4, measured=measured),
        ],
        report=Report(machine={}, options=Options()),
        late=Late(observers=1, connected=quick, caught_up=quick, problems=[]),
        idle=Idle(none=0.0, one=0.0, many=0.0, each_adds=0.0, cpu_ms_per_second=None),
        short_runs=ShortRuns(
            statements=8.0, sends_per_second=1.0, naive_sends_per_second=1.0, run_cpu_ms=1.0, naive_run_cpu_ms=1.0
        ),
    )
    monkeypatch.setattr(command, "run_measurement", lambda together, measure: found)
    monkeypatch.setattr("sys.argv", ["bench", "--targets"])
    assert command.main() == code
    assert ("MISSED" in capsys.readouterr().out) is (measured == 0.41)


async def test_each_adapter_delivers_every_delta_to_every_client(
    postgres_url: str, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "ROUNDS", 1)
    monkeypatch.setattr(adapters, "DELTAS", 2)
    async with open_environment(postgres_url, template) as environment:
        found = await adapters.measure(environment, ((2, 2),))
    (shape,) = found.shapes
    assert [cost.protocol for cost in shape.costs] == [protocol.name for protocol in adapters.PROTOCOLS]
    assert all(cost.cpu_us > 0 and cost.bytes > len(adapters.TEXT) for cost in shape.costs)
    assert shape.costs[0].ratio == 1
    assert "2×2" in adapters.table(found)
