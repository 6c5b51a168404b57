"""A row of the matrix of clients, with the installed version of the client; `make clients` runs all rows."""

import asyncio
import json
import sys

from khala.store.postgres.database import Database
from tests.clients import matrix
from tests.clients.rows import FEATURES
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.providers import by_words, serving
from tests.support.shared_server import shared

TOKENS_PER_DAY = 30_000


async def spend(server: InProcessServer, someone: Person) -> None:
    """Use up the tokens that the account has today."""
    body = {"model": "khala", "messages": [{"role": "user", "content": "/words=20000 /pace=0"}]}
    for _ in range(3):
        answer = await server.http.post("/v1/chat/completions", json=body, headers=someone.headers, timeout=60)
        if answer.status_code == 429:
            return
    raise AssertionError("the account's limit has no effect")


async def test_all_cells_of_the_python_client_of_openai_work(postgres_url: str, template: str) -> None:
    async with (
        serving(default=by_words(100, 0, stamp=False)) as provider,
        shared(
            postgres_url, template, KHALA_MODELS=matrix.PROVIDER_MODEL, OPENAI_BASE_URL=f"{provider.url}/v1",
            OPENAI_API_KEY="none", KHALA_USER_TOKENS_PER_DAY=str(TOKENS_PER_DAY), KHALA_COOLDOWN_MS="0",
        ) as server,
    ):  # fmt: skip
        db = Database(server.database_url)
        owner, poor = await person(db), await person(db)
        await db.close()
        await spend(server, poor)
        env = {
            "KHALA_URL": server.url, "KHALA_TOKEN": owner.token, "KHALA_SPENT_TOKEN": poor.token,
            "KHALA_PROVIDER_MODEL": matrix.PROVIDER_MODEL, "PYTHONPATH": str(matrix.CELLS),
        }  # fmt: skip
        program = matrix.HERE / "programs" / "openai-python" / "client.py"
        output = await asyncio.to_thread(matrix.run, [sys.executable, str(program)], env)
    cells = json.loads(output)
    assert {name: cell for name, cell in cells.items() if cell["state"] != "works"} == {}
    assert set(cells) == set(FEATURES)
