"""The order in which several workers run the tests."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
LONG = (
    "tests/system/test_tool_crashes.py",
    "tests/system/test_isolation.py",
    "tests/integration/test_openapi.py",
    "tests/gallery/test_gallery.py",
    "tests/system/test_wheel.py",
    "tests/system/test_docs_examples.py",
    "tests/integration/test_library_agents.py",
    "tests/integration/test_worker_conformance.py",
    "tests/system/test_library_agent_crashes.py",
    "tests/system/test_page_blocks.py",
    "tests/clients/test_element.py",
    "tests/system/test_backup.py",
    "tests/system/test_many_processes.py",
    "tests/integration/test_large_loads.py",
)
"""Modules with tests that take tens of seconds, the longest first."""


def in_parts(tests: Sequence[T], count: int, module_of: Callable[[T], str]) -> list[T]:
    """The tests in `count` successive parts of equal size, each of which begins with some of the long modules.

    Tests of a module stay together, but for those at the border of two parts. `module_of` gives a test's file.
    """
    long: list[list[T]] = [[] for _ in range(count)]
    for place, module in enumerate(LONG):
        long[place % count] += [test for test in tests if module_of(test) == module]
    rest = [test for test in tests if module_of(test) not in LONG]
    ordered: list[T] = []
    for number, first in enumerate(long, 1):
        room = max(0, len(tests) * number // count - len(ordered) - len(first))
        ordered += [*first, *(rest if number == count else rest[:room])]
        rest = rest[room:]
    return ordered
