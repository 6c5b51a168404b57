"""The log of a database error does not contain the statement's parameters."""

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError

from khala.store.postgres.database import Database


async def test_a_logged_database_error_does_not_contain_the_parameters(database_url: str) -> None:
    store = Database(database_url)
    try:
        with pytest.raises(DBAPIError) as raised:
            async with store.transaction() as connection:
                await connection.execute(sqlalchemy.text("SELECT CAST(:said AS text)::int"), {"said": "adun" * 5})
    finally:
        await store.close()
    assert isinstance(raised.value.orig and raised.value.orig.__cause__, asyncpg.DataError)
    assert "[parameters:" not in str(raised.value)
