"""OpenAI's client for Python, with chat completions."""

import json

from cells import (
    BASE_URL,
    CALL,
    CITY_SCHEMA,
    PNG,
    PROVIDER_MODEL,
    SPENT_TOKEN,
    TOKEN,
    WORDS,
    Result,
    cell,
    failure,
    get,
    is_canceled,
    run,
    works,
)  # fmt: skip
from openai import NotFoundError, OpenAI, RateLimitError
from pydantic import BaseModel

client = OpenAI(base_url=BASE_URL, api_key=TOKEN, max_retries=0)
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


def ask(text, **more):
    return client.chat.completions.create(model="khala", messages=[{"role": "user", "content": text}], **more)


@cell("text")
def text() -> None:
    assert ask("/echo En taro Adun").choices[0].message.content == "En taro Adun"


@cell("stream")
def stream() -> None:
    messages = [{"role": "user", "content": "/words=5"}]
    chunks = list(client.chat.completions.create(model=PROVIDER_MODEL, messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices).strip() == WORDS


@cell("tools")
def tools() -> None:
    first = ask(CALL, tools=[WEATHER]).choices[0]
    (call,) = first.message.tool_calls
    assert (first.finish_reason, json.loads(call.function.arguments)) == ("tool_calls", {"city": "Aiur"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [{"role": "user", "content": CALL}, first.message, result]
    last = client.chat.completions.create(model="khala", messages=messages, tools=[WEATHER])
    assert last.choices[0].message.content == "It is fine."


@cell("forced")
def forced() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    (call,) = ask("Hello", tools=[WEATHER], tool_choice=choice).choices[0].message.tool_calls
    assert (call.function.name, "city" in json.loads(call.function.arguments)) == ("weather", True)


@cell("structured")
def structured() -> None:
    messages = [{"role": "user", "content": "Which is the largest city?"}]
    parsed = client.chat.completions.parse(model="khala", messages=messages, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY_SCHEMA, "strict": True}}
    City.model_validate_json(ask("Hello", response_format=form).choices[0].message.content)


@cell("images")
def images() -> None:
    content = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": PNG}}]
    assert "image/png" in ask(content).choices[0].message.content


@cell("usage")
def usage() -> None:
    options = {"include_usage": True}
    last = list(ask("/words=7 /pace=0", stream=True, stream_options=options))[-1]
    assert ask("/words=7 /pace=0").usage.completion_tokens == last.usage.completion_tokens == 7


@cell("cancel")
def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    with ask(prompt, stream=True, extra_headers={"x-cancel-on-disconnect": "true"}) as chunks:
        next(iter(chunks))
    assert is_canceled(prompt)
    return works("With the header `x-cancel-on-disconnect: true`; without it the run continues.")


@cell("resume")
def resume() -> Result:
    headers = {"Idempotency-Key": "left and joined"}
    prompt = "/words=60 /pace=60"
    with ask(prompt, stream=True, extra_headers=headers) as chunks:
        first = next(iter(chunks))
    again = list(ask(prompt, stream=True, extra_headers=headers))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in again if chunk.choices)
    assert text.split() == [f"word{number}" for number in range(1, 61)]
    assert again[0].id == first.id
    return works("With `Idempotency-Key`: the same request joins its run, and streams it from the beginning.")


@cell("approvals")
def approvals() -> Result:
    calls = '/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.'
    events = ask(calls, stream=True, extra_headers={"x-autopilot": "true", "x-autopilot-events": "true"})
    for event in events:
        if event.type == "autopilot_paused":
            (waiting,) = event.approvals
            path = f"{client.base_url.copy_with(path='/api/runs/')}{event.runId}/approvals/{waiting['toolCallId']}"
            client.post(path, body={"approved": True, "digest": waiting["digest"]}, cast_to=object)
    assert (event.type, event.reason) == ("autopilot_end", "stop")
    assert get("/api/threads?limit=1")["items"]
    return works("On autopilot: the stream reports the call and stays open; a request to Khala's REST API decides.")


@cell("errors")
def errors() -> Result:
    unknown = failure(
        NotFoundError,
        lambda: client.chat.completions.create(model="gpt-none", messages=[{"role": "user", "content": "Hello"}]),
    )
    poor = OpenAI(base_url=BASE_URL, api_key=SPENT_TOKEN, max_retries=0)
    spent = failure(
        RateLimitError,
        lambda: poor.chat.completions.create(model="khala", messages=[{"role": "user", "content": "Hello"}]),
    )
    return works("", unknown, spent)


run()
