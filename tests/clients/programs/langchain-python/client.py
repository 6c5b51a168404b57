"""LangChain for Python: `ChatOpenAI`, and an agent."""

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
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import NotFoundError, RateLimitError
from pydantic import BaseModel


def chat(**more):
    return ChatOpenAI(**({"model": "khala", "base_url": BASE_URL, "api_key": TOKEN, "max_retries": 0} | more))


@tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"sunny in {city}"


class City(BaseModel):
    """A city."""

    name: str
    population: int


@cell("text")
def text() -> Result:
    assert chat().invoke("/echo En taro Adun").content == "En taro Adun"
    assert chat(use_responses_api=True).invoke("/echo En taro Adun").text == "En taro Adun"
    return works("With chat completions, and with `use_responses_api=True`.")


@cell("stream")
def stream() -> None:
    assert "".join(chunk.text for chunk in chat(model=PROVIDER_MODEL).stream("/words=5")).strip() == WORDS


@cell("tools")
def tools() -> None:
    model = chat().bind_tools([weather])
    first = model.invoke(CALL)
    (call,) = first.tool_calls
    messages = [HumanMessage(CALL), first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert model.invoke(messages).content == "It is fine."
    state = create_agent(chat(), [weather]).invoke({"messages": [HumanMessage(CALL)]})
    assert [message.content for message in state["messages"][-2:]] == ["sunny in Aiur", "It is fine."]


@cell("forced")
def forced() -> None:
    (call,) = chat().bind_tools([weather], tool_choice="weather").invoke("Hello").tool_calls
    assert (call["name"], set(call["args"])) == ("weather", {"city"})


@cell("structured")
def structured() -> Result:
    for method in ("json_schema", "function_calling", "json_mode"):
        model = chat().with_structured_output(City, method=method, include_raw=method == "json_mode")
        found = model.invoke("Reply in JSON: which is the largest city?")
        # Without a schema the demo model cannot know the fields, so only the text's form is checked.
        assert isinstance(found["raw"].content, str) if method == "json_mode" else isinstance(found, City), found
    return works("With the methods `json_schema`, `function_calling` and `json_mode`.")


@cell("images")
def images() -> None:
    content = [
        {"type": "text", "text": "Look."},
        {"type": "image", "base64": PNG.split(",")[1], "mime_type": "image/png"},
    ]
    assert "image/png" in chat().invoke([HumanMessage(content)]).content


@cell("usage")
def usage() -> None:
    assert chat().invoke("/words=7 /pace=0").usage_metadata["output_tokens"] == 7
    chunks = list(chat(stream_usage=True).stream("/words=7 /pace=0"))
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 7


@cell("cancel")
def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    chunks = chat(default_headers={"x-cancel-on-disconnect": "true"}).stream(prompt)
    next(chunks)
    chunks.close()
    assert is_canceled(prompt)
    return works("With the header `x-cancel-on-disconnect: true` in `default_headers`.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "LangChain asks for approval of its own tools, in the client.")


@cell("errors")
def errors() -> Result:
    unknown = failure(NotFoundError, lambda: chat(model="gpt-none").invoke("Hello"))
    return works("", unknown, failure(RateLimitError, lambda: chat(api_key=SPENT_TOKEN).invoke("Hello")))


run()
