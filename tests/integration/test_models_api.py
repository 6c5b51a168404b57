"""Models over REST: the models that a request can name, with their prices and context windows."""

from typing import Any

from tests.integration.test_api_threads import assert_problem
from tests.support.in_process import khala

SETTINGS: dict[str, Any] = {
    "KHALA_MODEL": "openai:gpt-4o-mini", "KHALA_FALLBACK_MODELS": "openai:llama3:8b", "OPENAI_API_KEY": "key",
    "KHALA_MODELS": "openai:gpt-4o,openai:gpt-5*", "KHALA_TITLES": "1",
    "KHALA_MODEL_TITLES": "openai:llama3:8b=Our Llama; demo=Demo",
    "KHALA_MODEL_DESCRIPTIONS": "openai:llama3:8b=Stays in the house, day and night",
}  # fmt: skip


async def test_the_allowed_models_are_listed_with_their_titles_and_prices(database_url: str) -> None:
    async with khala(database_url, with_executor=False, **SETTINGS) as server:
        found = (await server.http.get("/api/models")).raise_for_status().json()
        assert found["default"] == "openai:gpt-4o-mini"
        assert found["titles"] is True
        names = [item["model"] for item in found["items"]]
        assert names == ["openai:gpt-4o-mini", "openai:llama3:8b", "openai:gpt-4o", "demo"]
        mini, local, larger, demo = found["items"]
        assert mini == {
            "model": "openai:gpt-4o-mini",
            "provider": "openai",
            "name": "gpt-4o-mini",
            "inputUsdPerMillion": "0.15",
            "outputUsdPerMillion": "0.6",
            "contextTokens": 128_000,
        }
        assert local == {
            "model": "openai:llama3:8b",
            "provider": "openai",
            "name": "llama3:8b",
            "title": "Our Llama",
            "description": "Stays in the house, day and night",
        }
        assert (larger["inputUsdPerMillion"], larger["outputUsdPerMillion"]) == ("2.5", "10")
        assert demo == {
            "model": "demo",
            "provider": "demo",
            "name": "demo",
            "title": "Demo",
            "inputUsdPerMillion": "0",
            "outputUsdPerMillion": "0",
        }
        thread = await server.thread()
        for name in [*names, "openai:gpt-5-mini"]:
            options = {"model": name, "ifBusy": "queue"}
            assert (await thread.post("send", {"text": "?", "options": options})).status_code == 202, name
        wrong = await thread.post("send", {"text": "?", "options": {"model": "openai:gpt-4"}})
        assert assert_problem(wrong, 400, "invalid_input")["errors"][0]["path"] == "options.model"
