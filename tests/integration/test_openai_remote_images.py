"""Images at web addresses in a completion request: fetched through the SSRF guard, within limits."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import openai
import pytest
import pytest_asyncio

from khala.api.blobs import remote_files
from khala.store.postgres.database import Database
from tests.support.mcp_server import PNG
from tests.support.openai_api import Requester
from tests.support.pages import Pages, pages
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Gallery(NamedTuple):
    """A web server with images, and a client of a Khala that may fetch from it."""

    web: Pages
    requester: Requester

    async def ask(self, *urls: str) -> Any:
        """A completion about the images at these addresses."""
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return await self.requester.ask("", messages=[{"role": "user", "content": parts}])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gallery(postgres_url: str, template: str) -> AsyncIterator[Gallery]:
    async with pages() as web, shared(postgres_url, template, KHALA_FETCH_ALLOW="127.0.0.1") as inside:
        database = Database(inside.database_url)
        web.respond("/a.png", PNG, Content_Type="text/plain")
        web.respond("/page", b"<p>no image</p>", Content_Type="image/png")
        web.respond("/large", b"x" * (9 << 20))
        web.respond("/inside", b"", status="302 Found", Location="http://10.0.0.1/a.png")
        yield Gallery(web, await Requester.new(inside, database))
        await database.close()


async def test_an_image_is_fetched_stored_and_sent_to_the_model(gallery: Gallery) -> None:
    completion = await gallery.ask(gallery.web.url("/a.png"), gallery.web.url("/a.png"))
    assert str(completion.choices[0].message.content).count("image/png") == 2
    message = (await gallery.requester.thread(completion.khala["threadId"]))[0]
    assert [block["blob"]["size"] for block in message["content"]] == [len(PNG)] * 2
    assert "uthorization" not in "".join(gallery.web.requests)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/page", "no PNG"), ("/large", "larger than"), ("/missing", "404"), ("/inside", "not public"),
    ],
)  # fmt: skip
async def test_another_answer_is_refused_and_leaves_no_thread(gallery: Gallery, path: str, why: str) -> None:
    before = await gallery.requester.get("/api/threads")
    with pytest.raises(openai.BadRequestError, match=why) as refused:
        await gallery.ask(gallery.web.url("/a.png"), gallery.web.url(path))
    assert refused.value.param == "messages[0].content[1]"
    assert await gallery.requester.get("/api/threads") == before


async def test_a_server_without_the_tool_to_fetch_fetches_nothing(postgres_url: str, template: str) -> None:
    async with shared(postgres_url, template, KHALA_TOOLS="todo_*") as inside:
        database = Database(inside.database_url)
        closed = Gallery(Pages(), await Requester.new(inside, database))
        with pytest.raises(openai.BadRequestError, match="fetches no files"):
            await closed.ask("https://example.com/a.png")
        await database.close()


async def test_the_files_of_so_many_requests_are_fetched_at_once(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "_fetching", {object() for _ in range(remote_files.MAX_CONCURRENT_REQUESTS)})
    with pytest.raises(openai.RateLimitError, match="too many requests") as refused:
        await gallery.ask(gallery.web.url("/a.png"))
    assert refused.value.response.headers["retry-after"] == "1"
    monkeypatch.undo()
    await gallery.ask(gallery.web.url("/a.png"))
    assert not remote_files._fetching
