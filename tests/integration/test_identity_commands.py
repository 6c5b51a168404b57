"""`khala tokens` and `khala accounts` on a database."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from khala.cli import main
from khala.domain.access import Caller
from khala.domain.accounts import Identity
from khala.identity import passwords
from khala.store.accounts import accounts, api_tokens, audit, external_users, sessions
from khala.store.postgres.database import Database

ADDRESS = "tassadar@example.com"

T = TypeVar("T")


@pytest.fixture
def environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("KHALA_MODEL", "demo")


def khala(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, words, prog_name="khala")


def with_database(database_url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """The result of this work on the database."""

    async def run() -> T:
        db = Database(database_url)
        try:
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(run())


def found(database_url: str, secret: str) -> Caller | None:
    """The caller with this token."""

    async def find(db: Database) -> Caller | None:
        async with db.driver() as driver:
            return await api_tokens.find(driver, secret)

    return with_database(database_url, find)


@pytest.mark.usefixtures("environment")
def test_a_service_token_is_shown_once_stored_as_a_hash_listed_and_revoked(database_url: str) -> None:
    created = khala("tokens", "create", "--service", "shop", "--scopes", "tokens,impersonate", "--days", "30")
    assert created.exit_code == 0, created.output
    secret = created.output.strip()
    assert re.fullmatch(r"khala_svc_[A-Za-z0-9_-]{43}", secret)
    caller = found(database_url, secret)
    assert caller is not None
    assert caller.service is not None
    assert (caller.service.name, sorted(caller.service.scopes)) == ("shop", ["impersonate", "tokens"])
    assert caller.scopes == frozenset()
    listed = khala("tokens", "list").output
    assert secret not in listed
    token_id, service, scopes = listed.split()[:3]
    assert (service, scopes) == ("shop", "impersonate,tokens")
    assert khala("tokens", "revoke", token_id).output == "Revoked.\n"
    assert found(database_url, secret) is None
    again = khala("tokens", "revoke", token_id)
    assert (again.exit_code, again.output) == (1, "Error: There is no such service token.\n")


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--service", "Shop", "--scopes", "tokens"), "lower-case letters"),
        (("--service", "shop", "--scopes", "everything"), "no scope 'everything'"),
        (
            ("--service", "shop", "--scopes", "tokens", "--issuer", "https://nobody.example"),
            "is no issuer of KHALA_JWT",
        ),
    ],
)
def test_a_service_token_that_makes_no_sense_is_refused(words: tuple[str, ...], message: str) -> None:
    refused = khala("tokens", "create", *words)
    assert refused.exit_code != 0
    assert message in " ".join(refused.output.split())


@pytest.mark.usefixtures("environment")
def test_an_account_is_named_by_its_address_or_its_id(database_url: str) -> None:
    async def register(db: Database) -> UUID:
        return await accounts.register(db, ADDRESS, "hash", None, Caller())

    user_id = with_database(database_url, register)
    assert khala("accounts", "admin", ADDRESS.upper()).output == f"{user_id} is an administrator.\n"

    async def is_admin(db: Database) -> bool:
        async with db.driver() as driver:
            return (await external_users.admin_facts(driver, user_id)).admin

    assert with_database(database_url, is_admin)
    assert khala("accounts", "admin", str(user_id), "--revoke").output == f"{user_id} is no administrator.\n"
    assert not with_database(database_url, is_admin)
    assert khala("accounts", "block", ADDRESS).output == f"{user_id} is blocked.\n"
    assert khala("accounts", "unblock", ADDRESS).output == f"{user_id} is not blocked.\n"
    nobody = khala("accounts", "block", "nobody@example.com")
    assert (nobody.exit_code, nobody.output) == (1, "Error: There is no account nobody@example.com.\n")

    async def another(db: Database) -> UUID:
        return await accounts.of_identity(db, Identity(issuer="a", subject="b", email=ADDRESS), Caller())

    other_id = with_database(database_url, another)
    several = khala("accounts", "block", ADDRESS)
    assert several.exit_code == 1
    assert str(user_id) in several.output
    assert str(other_id) in several.output


@pytest.mark.usefixtures("environment")
def test_a_lost_password_is_replaced_and_its_sessions_end(database_url: str) -> None:
    async def register(db: Database) -> UUID:
        user_id = await accounts.register(db, ADDRESS, "hash", None, Caller())
        await sessions.begin(db, user_id, Caller(), user_agent=None)
        return user_id

    user_id = with_database(database_url, register)
    _, secret = with_database(
        database_url, lambda db: api_tokens.create(db, Caller(user_id=user_id), "test", ("read",), None)
    )
    reset = khala("accounts", "reset-password", ADDRESS)
    assert reset.exit_code == 0, reset.output

    async def read(db: Database) -> tuple[bool, int]:
        async with db.driver() as driver:
            record = await accounts.password_record(driver, ADDRESS)
            assert record is not None
            fits = await passwords.verify_password(reset.output.strip(), record.hash)
            return fits, len(await sessions.of_user(driver, user_id, None))

    assert with_database(database_url, read) == (True, 0)
    caller = found(database_url, secret)
    assert caller is not None, "API tokens stay valid"
    assert caller.user_id == user_id

    async def actions(db: Database) -> list[str]:
        async with db.driver() as driver:
            return [entry.action for entry in await audit.of_user(driver, user_id, before=None, limit=50)]

    recorded = with_database(database_url, actions)
    assert recorded[0] == "password_reset"
    assert "password_changed" not in recorded, "the person has not changed it"


@pytest.mark.usefixtures("environment")
def test_an_account_without_a_password_is_given_none(database_url: str) -> None:
    async def sign_in(db: Database) -> UUID:
        return await accounts.of_identity(db, Identity(issuer="a", subject="b", email=ADDRESS), Caller())

    with_database(database_url, sign_in)
    refused = khala("accounts", "reset-password", ADDRESS)
    expected = "Error: This account has no password: it signs in with another provider.\n"
    assert (refused.exit_code, refused.output) == (1, expected)
