"""Hundreds of calls that report progress continuously, on one page."""

import re

import pytest
from playwright.async_api import expect

from khala.store.postgres.database import Database
from tests.support.browser_page import opened, storm_on
from tests.support.in_process import khala

pytestmark = pytest.mark.timeout(120)

TASKS = 500
TYPED = "One can write all the same."


async def test_500_changing_calls_are_shown_exactly_and_only_visible_ones_are_in_the_page(
    db: Database, database_url: str
) -> None:
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        async with opened(server, thread) as page:
            storm = await storm_on(db, thread, tasks=TASKS)
            await storm.begin()
            await expect(page.locator(".group-head").first).to_contain_text("of 500 done")
            await page.locator("#text").focus()
            await storm.rage(1.5)
            await page.keyboard.type(TYPED)
            await expect(page.locator("#text")).to_have_value(TYPED)
            assert 0 < await page.locator(".card").count() < 120
            assert await page.evaluate("document.querySelectorAll('*').length") < 5_000
            await storm.end()
            ended = re.compile(r"^Searched the files 500 times(?: [\d.]+\ss)?\s*$")
            await expect(page.locator(".group-head")).to_have_text([ended])


async def test_only_the_visible_ones_of_a_hundred_rounds_are_in_the_page(db: Database, database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        async with opened(server, thread) as page:
            storm = await storm_on(db, thread, tasks=360)
            await storm.begin(each=3)
            await expect(page.get_by_role("list", name="Tool calls", exact=True)).to_be_visible(timeout=30_000)
            assert await page.locator(".card").count() < 120
            await page.locator("#scroll").evaluate("(element) => element.scrollTo(0, 0)")
            await expect(page.locator(".group-head").first).to_be_in_viewport()
            await expect(page.locator(".card-args").first).to_have_text("n0")
            assert await page.locator(".card").count() < 120
