"""Pydantic AI, with OpenAI's models for chat completions and for responses."""

import base64

from cells import (
    BASE_URL,
    CALL,
    PNG,
    PROVIDER_MODEL,
    SPENT_TOKEN,
    TOKEN,
    WORDS,
    Result,
    absent,
    cell,
    failure,
    is_canceled,
    run,
    works,
)  # fmt: skip
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    name: str
    population: int


def agent(name="khala", kind=OpenAIChatModel, token=TOKEN, **more):
    return Agent(kind(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=token)), **more)


@cell("text")
def text() -> Result:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        assert agent(kind=kind).run_sync("/echo En taro Adun").output == "En taro Adun"
    return works("With `OpenAIChatModel` and `OpenAIResponsesModel`.")


@cell("stream")
async def stream() -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        async with agent(PROVIDER_MODEL, kind).run_stream("/words=5") as answer:
            assert "".join([delta async for delta in answer.stream_text(delta=True)]).strip() == WORDS


@cell("tools")
def tools() -> None:
    called = []

    def weather(city: str) -> str:
        """Tells the weather."""
        called.append(city)
        return "sunny"

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        assert agent(kind=kind, tools=[weather]).run_sync(CALL).output == "It is fine."
    assert called == ["Aiur", "Aiur"]


@cell("forced")
def forced() -> Result:
    assert isinstance(agent(output_type=ToolOutput(City)).run_sync("Hello").output, City)
    return works("With `ToolOutput`, which requires a call.")


@cell("structured")
def structured() -> Result:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for output in (City, NativeOutput(City)):
            found = agent(kind=kind, output_type=output).run_sync("Which is the largest city?").output
            assert isinstance(found, City)
    prompted = agent(output_type=PromptedOutput(City)).run_sync('/echo {"name": "Aiur", "population": 1}')
    assert prompted.output == City(name="Aiur", population=1)
    return works("With `output_type=City`, `NativeOutput` and `PromptedOutput`.")


@cell("images")
def images() -> None:
    image = BinaryContent(base64.b64decode(PNG.split(",")[1]), media_type="image/png")
    assert "image/png" in agent().run_sync(["Look.", image]).output


@cell("usage")
def usage() -> None:
    used = agent().run_sync("/words=7 /pace=0").usage
    assert (used() if callable(used) else used).output_tokens == 7


@cell("cancel")
async def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    settings = {"extra_headers": {"x-cancel-on-disconnect": "true"}}
    async with agent(model_settings=settings).run_stream(prompt) as answer:
        async for _ in answer.stream_text(delta=True, debounce_by=None):
            await answer.cancel()
            break
    assert is_canceled(prompt)
    return works("With the header `x-cancel-on-disconnect: true` in `model_settings`.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "Pydantic AI asks for approval of its own tools, in the client.")


@cell("errors")
def errors() -> Result:
    unknown = failure(ModelHTTPError, lambda: agent("gpt-none").run_sync("Hello"))
    return works("", unknown, failure(ModelHTTPError, lambda: agent(token=SPENT_TOKEN).run_sync("Hello")))


run()
