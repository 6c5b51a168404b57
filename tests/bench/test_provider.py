"""Test of the benchmark of model streams: every client reads the whole text. It does not check costs."""

import msgspec

from tests.bench.provider import CLIENTS, Report, arguments, bench, table


async def test_every_client_reads_the_whole_text() -> None:
    report = await bench(arguments(["--streams", "3", "--tokens", "12", "--pace", "0"]))
    assert [cost.client for cost in report.costs] == list(CLIENTS)
    assert all(cost.us_per_token > 0 for cost in report.costs)
    assert "| khala |" in table(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
