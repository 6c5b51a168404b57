"""Test of the benchmark of model streams: every client reads the whole text. It does not check costs."""

import msgspec
import pytest

from tests.bench.provider import ANY_PROTOCOL, CLIENTS, Report, arguments, bench, table


@pytest.mark.parametrize(
    ("protocol", "clients"), [("openai", tuple(CLIENTS)), ("anthropic", ANY_PROTOCOL), ("google", ANY_PROTOCOL)]
)
async def test_every_client_reads_the_whole_text(protocol: str, clients: tuple[str, ...]) -> None:
    report = await bench(arguments(["--protocol", protocol, "--streams", "3", "--tokens", "12", "--pace", "0"]))
    assert [cost.client for cost in report.costs] == list(clients)
    assert all(cost.us_per_token > 0 for cost in report.costs)
    assert "| khala |" in table(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
