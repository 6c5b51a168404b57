"""`khala workers token` on a database."""

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner, Result

from khala.cli import main
from khala.domain.access import Caller
from khala.domain.agents import AgentDefinition
from khala.store.accounts import accounts, api_tokens
from khala.store.agents import agents
from khala.store.postgres.database import Database

ADDRESS = "tassadar@example.com"


def token(*agents: str, account: str = ADDRESS) -> Result:
    words = ("workers", "token", "worker-1", "--agents", ",".join(agents), "--account", account)
    return CliRunner().invoke(main, words, prog_name="khala")


def test_the_operator_makes_a_token_for_remote_agents_only(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("KHALA_MODEL", "demo")

    async def prepare() -> str:
        db = Database(database_url)
        user_id = await accounts.register(db, ADDRESS, "hash", "Tassadar", Caller())
        fields: dict[str, Any] = {"title": "A", "description": "", "instructions": "", "tools": ["*"], "examples": []}
        await agents.create(db, user_id, "remote", AgentDefinition(**fields, executor="remote"))
        await agents.create(db, user_id, "ours", AgentDefinition(**fields))
        await db.close()
        return str(user_id)

    async def find(secret: str) -> Caller | None:
        db = Database(database_url)
        async with db.driver() as driver:
            found = await api_tokens.find(driver, secret)
        await db.close()
        return found

    user_id = asyncio.run(prepare())
    for account in (ADDRESS, f" {ADDRESS.title()} ", user_id):
        made = token("remote", account=account)
        assert made.exit_code == 0, made.output
        caller = asyncio.run(find(made.output.strip()))
        assert caller is not None
        assert (str(caller.user_id), caller.scopes, caller.agents) == (
            user_id, frozenset({"execute"}), frozenset({"remote"}),
        )  # fmt: skip
    for refused in (token("ours"), token("remote", account="nobody@example.com"), token("Bad Name"), token("a", "a")):
        assert refused.exit_code != 0
