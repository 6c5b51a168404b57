"""The metrics of the evaluation, on cases that are computed by hand."""

import math

import pytest

from tests.eval import metrics
from tests.eval.calibration import best_floor, fit_calibration


def test_recall_is_the_share_of_expected_ids_among_the_first() -> None:
    ranked = ["a", "b", "c", "d", "e", "f"]
    assert metrics.recall_at(5, ["b"], ranked) == 1
    assert metrics.recall_at(5, ["f"], ranked) == 0
    assert metrics.recall_at(6, ["f"], ranked) == 1
    assert metrics.recall_at(5, ["a", "f"], ranked) == 0.5
    assert metrics.recall_at(5, ["a"], []) == 0
    with pytest.raises(ValueError, match="not defined"):
        metrics.recall_at(5, [], ranked)


def test_the_reciprocal_rank_is_that_of_the_first_expected_id() -> None:
    assert metrics.reciprocal_rank(["c", "d"], ["a", "b", "c", "d"]) == pytest.approx(1 / 3)
    assert metrics.reciprocal_rank(["a"], ["a"]) == 1
    assert metrics.reciprocal_rank(["z"], ["a", "b"]) == 0
    assert metrics.reciprocal_rank(["z"], []) == 0


def test_a_stale_id_counts_only_before_the_one_that_supersedes_it() -> None:
    assert metrics.is_stale_first(["new"], ["old"], ["other", "old", "new"])
    assert metrics.is_stale_first(["new"], ["old"], ["old"])
    assert not metrics.is_stale_first(["new"], ["old"], ["new", "old"])
    assert not metrics.is_stale_first(["new"], ["old"], ["other"])


def test_abstention_is_computed_from_right_wrong_and_missing_abstentions() -> None:
    # 3 abstentions of which 2 are right; 4 questions to abstain from.
    decisions = [(True, True), (True, True), (True, False), (False, True), (False, True), (False, False)]
    figures = metrics.abstention(decisions)
    assert figures.precision == pytest.approx(2 / 3)
    assert figures.recall == pytest.approx(2 / 4)
    assert figures.f1 == pytest.approx(4 / 7)
    assert metrics.abstention([(False, True), (False, False)]).f1 == 0
    assert metrics.abstention([]).f1 == 0
    assert metrics.abstention([(True, True), (False, False)]).f1 == 1


def test_the_calibration_error_is_weighted_by_the_answers_of_each_bin() -> None:
    # 0.8 to 0.9: mean confidence 0.85, accuracy 0.5, two answers. 0.2 to 0.3: confidence 0.2, accuracy 0, one answer.
    answers = [(0.8, True), (0.89, False), (0.2, False)]
    assert metrics.expected_calibration_error(answers) == pytest.approx((2 * abs(0.845 - 0.5) + 0.2) / 3)
    assert metrics.expected_calibration_error([(0.7, True)] * 7 + [(0.7, False)] * 3) == pytest.approx(0)
    assert metrics.expected_calibration_error([(1.0, True), (0.0, False)]) == 0
    assert metrics.expected_calibration_error([(1.0, False)]) == 1
    assert metrics.expected_calibration_error([]) == 0


def test_errors_in_different_bins_do_not_cancel_out_but_those_in_one_bin_do() -> None:
    too_sure_and_too_timid = [(0.9, False), (0.1, True)]
    assert metrics.expected_calibration_error(too_sure_and_too_timid) == pytest.approx(0.9)
    assert metrics.expected_calibration_error(too_sure_and_too_timid, bins=1) == pytest.approx(0)


@pytest.mark.parametrize("confidence", [-0.01, 1.01, math.nan])
def test_a_confidence_that_is_no_probability_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="no probability"):
        metrics.expected_calibration_error([(confidence, True)])


def test_means_and_medians_of_nothing_are_zero() -> None:
    assert metrics.accuracy([True, False, False, True]) == 0.5
    assert metrics.accuracy([]) == metrics.mean([]) == metrics.median([]) == 0
    assert metrics.median([5, 1, 3]) == 3
    assert metrics.median([5, 1, 3, 4]) == 3.5


def test_a_calibration_gives_the_observed_shares() -> None:
    # At score 0 a quarter is right, at score 1 three quarters: the logistic function that passes through both.
    answers = [(0.0, at < 25) for at in range(100)] + [(1.0, at < 75) for at in range(100)]
    fitted = fit_calibration(answers)
    assert fitted.probability(0.0) == pytest.approx(0.25, abs=0.001)
    assert fitted.probability(1.0) == pytest.approx(0.75, abs=0.001)
    assert fitted.probability(0.5) == pytest.approx(0.5, abs=0.001)


def test_a_calibration_never_falls_and_never_overflows() -> None:
    misleading = fit_calibration([(0.0, True)] * 9 + [(1.0, False)] * 9)
    assert misleading.probability(0.0) == misleading.probability(1.0) == pytest.approx(0.5)
    separated = fit_calibration([(0.0, False)] * 9 + [(1.0, True)] * 9)
    assert 0 <= separated.probability(-1e9) < 0.1
    assert 0.9 < separated.probability(1e9) <= 1
    assert fit_calibration([]).probability(0.3) == 0.5


def test_a_calibration_is_fitted_however_lopsided_the_answers_are() -> None:
    fitted = fit_calibration([(0.001 * at, at > 990) for at in range(1000)])
    assert fitted.probability(0.0) < 0.001
    assert fitted.probability(0.999) > 0.6


def test_the_floor_has_the_most_right_decisions_and_lies_between_scores() -> None:
    # (score, right if answered, right if abstained)
    answers = [(0.1, False, True), (0.2, False, True), (0.4, True, False), (0.6, True, False)]
    assert best_floor(answers) == pytest.approx(0.3)
    assert best_floor([(0.5, True, False), (0.9, False, True)]) == 0
    assert best_floor([]) == 0
