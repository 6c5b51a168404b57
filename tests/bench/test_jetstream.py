"""Tests of the comparison with NATS JetStream and of the sends to sockets. They do not check how fast anything is."""

import pytest
from msgspec.structs import replace

from tests.bench import socket_writes
from tests.bench.figures import Latency
from tests.bench.jetstream import Jetstream, jetstream
from tests.bench.jetstream_client import Received, differences
from tests.bench.targets import FAST_RATE, JETSTREAM_LIMITS, MAX_CORES_OF_1000_RUNS, Rows, fast_targets
from tests.bench.workload import Options, Workload
from tests.support.required_programs import program


async def test_a_tiny_workload_is_complete() -> None:
    found = await jetstream(Workload(2, 2), Options(rate=FAST_RATE, seconds=3.0), program("nats-server"))
    assert found.problems == []
    assert 2 * 2 * 7 <= found.deltas <= 2 * 2 * 11
    assert found.live_cpu is not None
    assert found.live_cpu > 0
    assert found.token.p50_ms is not None
    assert 10 < found.token.p50_ms < 1000


def test_another_text_is_a_problem() -> None:
    received = Received(texts=[("a", "t1 t2 "), ("b", "t1 ")], arrivals=[1, 2], ages=[])
    assert differences({"a": "t1 t2 ", "b": "t1 t2 "}, received) == ["b: another text was published"]


def test_without_a_nats_server_there_are_no_targets_of_the_comparison() -> None:
    some = Latency(p50_ms=1.0, p99_ms=1.0, p999_ms=1.0)
    other = Jetstream(
        workload="", deltas=1, live_cpu=1.0, server_seconds=1.0, publisher_seconds=1.0, token=some, problems=[]
    )
    compared = [replace(other, workload=workload.name) for workload in JETSTREAM_LIMITS]
    names = [target.name for target in fast_targets(Rows([]), [])]
    assert not any("NATS" in name for name in names)
    assert f"executor cores for 1,000 live runs of {FAST_RATE:g} tokens/s" in names
    with_nats = list(fast_targets(Rows([]), compared))
    assert [target.limit for target in with_nats][:4] == [*JETSTREAM_LIMITS.values(), MAX_CORES_OF_1000_RUNS]
    assert not any(target.met for target in with_nats), "nothing was measured"


@pytest.mark.parametrize("way", ["uvloop", "socket"])
def test_every_way_of_sending_reaches_all_sockets(way: str) -> None:
    assert socket_writes.measure(way, 3) > 0
