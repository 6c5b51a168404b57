"""The bench measures what it says, on the smallest of workloads; how fast things are is no matter of tests."""

import msgspec

from tests.bench.__main__ import bench
from tests.bench.report import table
from tests.bench.workload import Options, Workload


async def test_a_tiny_workload_is_complete_and_compared(postgres_url: str, template: str) -> None:
    options = Options(seconds=1.0, ramp=0.2)
    report = await bench([Workload(2, 2)], options, postgres_url, template)
    assert report.problems == []
    row = msgspec.to_builtins(report)["rows"][0]
    khala, baseline = row["khala"], row["baseline"]
    assert khala["delivery"]["deltas"] == baseline["delivery"]["deltas"] > 0
    assert khala["parts"] >= 2 * 2  # text and an end, of two runs
    for latency in (khala["token"], khala["newest"], khala["written"], baseline["latency"]):
        assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    for cpu in (khala["cpu"], baseline["cpu"]):
        assert cpu["server"] is not None
        assert cpu["driver"] is not None
    assert khala["wal_bytes_per_1000_parts"] > 0
    assert khala["commits_per_second"] > 0
    assert row["ratios"].keys() == {
        "cpu_server", "cpu_server_and_database", "token_p50_ms", "token_p99_ms", "written_p50_ms", "written_p99_ms"
    }  # fmt: skip
    assert row["ratios"]["written_p99_ms"] is not None
    assert {"cores", "python", "postgres", "commit"} <= report.machine.keys()
    assert "2×2" in table(report)
