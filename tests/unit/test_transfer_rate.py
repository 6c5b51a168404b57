"""The minimum transfer rate of a request body."""

import pytest

from khala.domain.transfer_rate import TransferRatePolicy

MIB = 1 << 20


def seconds_until_late(*, per_second: float, size: int, every: float = 1.0) -> float | None:
    """The time at which a body with this rate is rejected; None if it is read to its end."""
    pace, waited, received = TransferRatePolicy(), 0.0, 0
    while received < size:
        seconds_left = pace.seconds_left(waited, received)
        if seconds_left <= every:
            return waited + max(0.0, seconds_left)
        waited += every
        received += int(per_second * every)
    return None


def test_a_slow_phone_has_time_to_send_a_whole_upload() -> None:
    assert seconds_until_late(per_second=20_000, size=20 * MIB) is None


@pytest.mark.parametrize(("per_second", "every"), [(1, 1.0), (0.1, 10.0), (1000, 1.0), (8000, 1.0)])
def test_a_trickle_is_rejected_long_before_its_end(per_second: float, every: float) -> None:
    late = seconds_until_late(per_second=per_second, size=20 * MIB, every=every)
    assert late is not None
    assert 30 <= late <= 62


def test_a_silent_client_is_rejected_after_a_pause_whatever_it_has_sent() -> None:
    assert TransferRatePolicy().seconds_left(0, 0) == 30
    assert TransferRatePolicy().seconds_left(5, 19 * MIB) == 30
    assert TransferRatePolicy(max_pause=2).seconds_left(1, 0) == 1


def test_no_body_takes_longer_than_the_overall_limit() -> None:
    assert TransferRatePolicy().seconds_left(1799, 1 << 40) == 1
    assert TransferRatePolicy().seconds_left(1801, 1 << 40) < 0
