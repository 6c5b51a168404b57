"""OpenAI's client for Python, with responses."""

import json
import time

from cells import (
    BASE_URL,
    CALL,
    PNG,
    PROVIDER_MODEL,
    SPENT_TOKEN,
    TOKEN,
    WORDS,
    Result,
    cell,
    failure,
    refused,
    run,
    works,
)
from openai import BadRequestError, NotFoundError, OpenAI, RateLimitError
from pydantic import BaseModel

client = OpenAI(base_url=BASE_URL, api_key=TOKEN, max_retries=0)
WEATHER = {
    "type": "function", "name": "weather", "description": "Tells the weather.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip


class City(BaseModel):
    name: str
    population: int


def ask(text, **more):
    return client.responses.create(model="khala", input=text, **more)


@cell("text")
def text() -> None:
    first = ask("/echo En taro Adun")
    assert (first.output_text, first.status) == ("En taro Adun", "completed")
    assert ask("/echo And Tassadar", previous_response_id=first.id).output_text == "And Tassadar"


@cell("stream")
def stream() -> None:
    events = list(client.responses.create(model=PROVIDER_MODEL, input="/words=5", stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert ("".join(deltas).strip(), events[-1].type) == (WORDS, "response.completed")


@cell("tools")
def tools() -> None:
    first = ask(CALL, tools=[WEATHER])
    call = next(item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Aiur"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert ask([result], previous_response_id=first.id, tools=[WEATHER]).output_text == "It is fine."


@cell("forced")
def forced() -> None:
    output = ask("Hello", tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}).output
    (call,) = [item for item in output if item.type == "function_call"]
    assert (call.name, "city" in json.loads(call.arguments)) == ("weather", True)


@cell("structured")
def structured() -> None:
    answer = client.responses.parse(model="khala", input="Which is the largest city?", text_format=City)
    assert isinstance(answer.output_parsed, City)


@cell("images")
def images() -> None:
    content = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": PNG, "detail": "auto"}]
    assert "image/png" in ask([{"role": "user", "content": content}]).output_text


@cell("usage")
def usage() -> None:
    used = ask("/words=7 /pace=0").usage
    assert (used.output_tokens, used.total_tokens) == (7, used.input_tokens + 7)


@cell("cancel")
def cancel() -> None:
    running = ask("/words=2000 /pace=50", background=True)
    assert client.responses.cancel(running.id).status == "cancelled"
    deadline = time.monotonic() + 15
    while client.responses.retrieve(running.id).status != "cancelled":
        assert time.monotonic() < deadline
        time.sleep(0.1)


@cell("resume")
def resume() -> None:
    with ask("/words=60 /pace=60", background=True, stream=True) as events:
        before = []
        for event in events:
            before.append(event)
            if event.sequence_number == 10:
                break
    after = list(client.responses.retrieve(before[0].response.id, stream=True, starting_after=10))
    assert [event.sequence_number for event in after] == list(range(11, 11 + len(after)))
    text = "".join(event.delta for event in [*before, *after] if event.type == "response.output_text.delta")
    assert text.split() == [f"word{number}" for number in range(1, 61)]


@cell("approvals")
def approvals() -> Result:
    tool = {
        "type": "mcp",
        "server_label": "files",
        "server_url": "https://example.com/mcp",
        "require_approval": "always",
    }
    return refused(failure(BadRequestError, lambda: ask("Hello", tools=[tool])))


@cell("errors")
def errors() -> Result:
    unknown = failure(NotFoundError, lambda: client.responses.create(model="gpt-none", input="Hello"))
    poor = OpenAI(base_url=BASE_URL, api_key=SPENT_TOKEN, max_retries=0)
    spent = failure(RateLimitError, lambda: poor.responses.create(model="khala", input="Hello"))
    search = failure(BadRequestError, lambda: ask("Hello", tools=[{"type": "web_search"}]))
    return works("", unknown, spent, search)


run()
