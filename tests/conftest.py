"""Fixtures for all tests: one Postgres per session, and one migrated database per test, cloned from a template."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from khala.store.postgres.database import Database
from tests.support import lock_order, plain_logs, postgres, quick_hashes
from tests.support.order_of_tests import in_parts

# The time of an example depends on the load of the machine, and not on the property.
settings.register_profile("laws", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laws")


lock_order.install()
quick_hashes.install()
plain_logs.install()

# While tests are collected, Python's collector would examine all objects again and again, and find nothing.
gc.disable()

COLLECTION_THRESHOLDS = (20_000, 20, 50)
"""How many objects, and collections of younger objects, begin a collection: `gc.set_threshold`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, begin with the modules that take longest: at the end, small tests share what is left.

    Each worker gets an equal number of successive tests at first, so each of these parts begins with some of them.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = in_parts(items, workers, lambda item: item.location[0])


def pytest_collection_finish() -> None:
    """Have Python's collector ignore all modules and tests: each start of a server would have it examine them all.

    It runs less often than usual, which saves about a tenth of the CPU of a test.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.enable()


@pytest.fixture(autouse=True)
def _locks_in_order() -> Iterator[None]:
    """Fail a test if a transaction took its locks out of order."""
    yield
    violations = lock_order.take_violations()
    assert not violations, "\n".join(["the order of app/khala/store/postgres/lock_order.py was violated:", *violations])


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def template(postgres_url: str) -> Iterator[str]:
    name = asyncio.run(postgres.make_template(postgres_url))
    yield name
    asyncio.run(postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def database_url(postgres_url: str, template: str) -> Iterator[str]:
    with postgres.sync_database(postgres_url, template) as url:
        yield url


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()
