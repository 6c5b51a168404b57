"""The report of `make scale`: targets, comparison and exit status."""

from pathlib import Path

import msgspec
import pytest

from tests.scale import __main__ as command
from tests.scale.deployment import MAX_SHARE, DeploymentSize
from tests.scale.figures import Figure, ScaleReport, read_report, save_report, table
from tests.scale.measurements import MEASUREMENTS, chosen_measurements


def report(value: float) -> ScaleReport:
    figures = [
        Figure(name="claim", size="4,000 queued runs", value=value, unit="ms", target=30.0),
        Figure(name="claim", size="4,000 queued runs", value=900.0, unit="buffers"),
    ]
    return ScaleReport(machine={}, deployment=DeploymentSize.of(500), fill_seconds=1.0, figures=figures)


def test_a_saved_report_is_read_and_compared(tmp_path: Path) -> None:
    save_report(report(120.0), tmp_path / "saved.json")
    saved = read_report(tmp_path / "saved.json")
    assert saved == report(120.0)
    assert "before" not in table(saved)
    first, second = table(report(30.0), saved).splitlines()[-2:]
    assert first.split()[-6:] == ["ms", "≤", "30.00", "yes", "120", "0.25"]
    assert second.split()[-3:] == ["buffers", "900", "1.00"]


@pytest.mark.parametrize(
    ("value", "flags", "status"), [(31.0, ["--targets"], 1), (30.0, ["--targets"], 0), (31.0, [], 0)]
)
def test_the_command_exits_with_one_if_it_has_targets_and_misses_one(
    monkeypatch: pytest.MonkeyPatch, value: float, flags: list[str], status: int
) -> None:
    async def measured(*_: object, with_parts: bool) -> ScaleReport:
        return report(value)

    monkeypatch.setattr(command, "measure", measured)
    monkeypatch.setattr("sys.argv", ["scale", *flags])
    monkeypatch.setenv("TEST_DATABASE_URL", "postgresql://nowhere")
    assert command.main() == status


def test_a_chosen_measurement_brings_those_that_prepare_it() -> None:
    assert chosen_measurements(["status", "threads"]) == ["threads", "claim", "status"]
    assert chosen_measurements(list(MEASUREMENTS), ["verify"]) == [name for name in MEASUREMENTS if name != "verify"]


@pytest.mark.parametrize("threads", [500, 2_000, 50_000, 500_000])
def test_a_deployment_of_any_size_has_threads_of_every_kind(threads: int) -> None:
    size = DeploymentSize.of(threads)
    assert size.active <= size.threads - size.listed - size.deleted
    assert max(size.listed, size.deleted) <= MAX_SHARE
    assert size.deep_messages == 2 * size.deep_runs + 1
    assert all(value > 0 for value in msgspec.structs.astuple(size))
