"""The order of tests for several workers."""

from pathlib import Path

from tests.support.order_of_tests import LONG, in_parts


def test_each_part_begins_with_long_modules_and_no_test_is_lost() -> None:
    tests = [f"tests/unit/test_{number}.py" for number in range(60)] + [module for module in LONG for _ in range(2)]
    ordered = in_parts(tests, 3, lambda test: test)
    assert sorted(ordered) == sorted(tests)
    assert [ordered[len(tests) * part // 3] for part in range(3)] == list(LONG[:3])


def test_few_tests_are_all_kept() -> None:
    tests = [LONG[0]] * 5 + ["tests/unit/test_a.py"]
    assert sorted(in_parts(tests, 3, lambda test: test)) == sorted(tests)
    assert in_parts([], 3, str) == []


def test_the_long_modules_exist() -> None:
    root = Path(__file__).parents[2]
    assert [module for module in LONG if not (root / module).exists()] == []
