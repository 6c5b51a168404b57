"""LiteLLM, with the provider `openai`."""

import json

import litellm
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

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str
    population: int


def ask(content, model="khala", **more):
    messages = content if isinstance(content, list) and "role" in content[0] else [{"role": "user", "content": content}]
    access = {"api_base": BASE_URL, "api_key": TOKEN, "max_retries": 0}
    return litellm.completion(model=f"openai/{model}", messages=messages, **(access | more))


@cell("text")
def text() -> Result:
    assert ask("/echo En taro Adun").choices[0].message.content == "En taro Adun"
    answer = litellm.responses(model="openai/khala", input="/echo En taro Adun", api_base=BASE_URL, api_key=TOKEN)
    assert answer.output[0].content[0].text == "En taro Adun"
    return works("With `completion` and with `responses`.")


@cell("stream")
def stream() -> None:
    chunks = ask("/words=5", PROVIDER_MODEL, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == WORDS


@cell("tools")
def tools() -> None:
    first = ask(CALL, tools=[WEATHER]).choices[0].message
    (call,) = first.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Aiur"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    last = ask([{"role": "user", "content": CALL}, first.model_dump(), result], tools=[WEATHER])
    assert last.choices[0].message.content == "It is fine."


@cell("forced")
def forced() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    (call,) = ask("Hello", tools=[WEATHER], tool_choice=choice).choices[0].message.tool_calls
    assert (call.function.name, "city" in json.loads(call.function.arguments)) == ("weather", True)


@cell("structured")
def structured() -> None:
    City.model_validate_json(ask("Which is the largest city?", response_format=City).choices[0].message.content)


@cell("images")
def images() -> None:
    content = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": PNG}}]
    assert "image/png" in ask(content).choices[0].message.content


@cell("usage")
def usage() -> None:
    assert ask("/words=7 /pace=0").usage.completion_tokens == 7
    chunks = list(ask("/words=7 /pace=0", stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [7]


@cell("cancel")
def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    chunks = ask(prompt, stream=True, extra_headers={"x-cancel-on-disconnect": "true"})
    next(chunks)
    chunks.completion_stream.response.close()
    assert is_canceled(prompt)
    return works("With the header `x-cancel-on-disconnect: true` in `extra_headers`, when the connection is closed.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "The client has no approvals.")


@cell("errors")
def errors() -> Result:
    unknown = failure(litellm.NotFoundError, lambda: ask("Hello", "gpt-none"))
    return works("", unknown, failure(litellm.RateLimitError, lambda: ask("Hello", api_key=SPENT_TOKEN)))


run()
