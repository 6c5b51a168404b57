"""The OpenAI Agents SDK, with responses (its default) and with chat completions."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)  # fmt: skip
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
    is_canceled,
    run,
    works,
)  # fmt: skip
from openai import AsyncOpenAI, NotFoundError, RateLimitError
from pydantic import BaseModel

set_tracing_disabled(True)
KINDS = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
called = []


class City(BaseModel):
    name: str
    population: int


@function_tool
def weather(city: str) -> str:
    """Tells the weather."""
    called.append(city)
    return "sunny"


def agent(kind=OpenAIResponsesModel, name="khala", token=TOKEN, **more):
    model = kind(model=name, openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=token, max_retries=0))
    return Agent(name="Probe", model=model, **more)


@cell("text")
async def text() -> Result:
    for kind in KINDS:
        assert (await Runner.run(agent(kind), "/echo En taro Adun")).final_output == "En taro Adun"
    return works("With `OpenAIResponsesModel`, the default, and `OpenAIChatCompletionsModel`.")


@cell("stream")
async def stream() -> None:
    for kind in KINDS:
        answer = Runner.run_streamed(agent(kind, PROVIDER_MODEL), "/words=5")
        raw = [event.data async for event in answer.stream_events() if event.type == "raw_response_event"]
        assert "".join(event.delta for event in raw if event.type == "response.output_text.delta").strip() == WORDS


@cell("tools")
async def tools() -> None:
    for kind in KINDS:
        called.clear()
        answer = await Runner.run(agent(kind, tools=[weather]), CALL)
        assert (answer.final_output, called) == ("It is fine.", ["Aiur"])


@cell("forced")
async def forced() -> None:
    for kind in KINDS:
        called.clear()
        settings = ModelSettings(tool_choice="weather")
        asked = agent(kind, tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool")
        assert ((await Runner.run(asked, "Hello")).final_output, len(called)) == ("sunny", 1)


@cell("structured")
async def structured() -> None:
    for kind in KINDS:
        found = (await Runner.run(agent(kind, output_type=City), "Which is the largest city?")).final_output
        assert isinstance(found, City)


@cell("images")
async def images() -> None:
    content = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": PNG, "detail": "auto"}]
    for kind in KINDS:
        answer = await Runner.run(agent(kind), [{"role": "user", "content": content}])
        assert "image/png" in answer.final_output


@cell("usage")
async def usage() -> None:
    for kind in KINDS:
        answer = await Runner.run(agent(kind), "/words=7 /pace=0")
        assert answer.context_wrapper.usage.output_tokens == 7


@cell("cancel")
async def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    settings = ModelSettings(extra_headers={"x-cancel-on-disconnect": "true"})
    answer = Runner.run_streamed(agent(OpenAIChatCompletionsModel, model_settings=settings), prompt)
    async for event in answer.stream_events():
        if event.type == "raw_response_event":
            answer.cancel()
    assert is_canceled(prompt)
    return works("With chat completions and the header `x-cancel-on-disconnect: true`; a response continues.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "The Agents SDK asks for approval of its own tools, in the client.")


@cell("errors")
async def errors() -> Result:
    words = []
    for kind, asked in ((NotFoundError, agent(name="gpt-none")), (RateLimitError, agent(token=SPENT_TOKEN))):
        try:
            await Runner.run(asked, "Hello")
        except kind as error:
            words.append(str(error))
    assert len(words) == 2
    return works("", *words)


run()
