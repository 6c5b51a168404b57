"""The bench of providers' streams reads all the text in every way; what it costs is no matter of tests."""

import msgspec

from tests.bench.provider import WAYS, Report, arguments, bench, table


async def test_every_way_reads_all_the_text() -> None:
    report = await bench(arguments(["--streams", "3", "--tokens", "12", "--pace", "0"]))
    assert [cost.way for cost in report.costs] == list(WAYS)
    assert all(cost.us_per_token > 0 for cost in report.costs)
    assert "| khala |" in table(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
