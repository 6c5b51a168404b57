"""Instructor over OpenAI's client, in its modes."""

import instructor
from cells import BASE_URL, PNG, SPENT_TOKEN, TOKEN, Result, absent, cell, failure, is_canceled, run, works
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


def client(mode=instructor.Mode.TOOLS, token=TOKEN):
    return instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=token, max_retries=0), mode=mode)


def user(content):
    return [{"role": "user", "content": content}]


@cell("text")
def text() -> Result:
    messages = user("/echo En taro Adun")
    assert (
        client().create(model="khala", messages=messages, response_model=None).choices[0].message.content
        == "En taro Adun"
    )
    return works("With `response_model=None`.")


@cell("stream")
def stream() -> Result:
    partial = list(client().create_partial(model="khala", messages=user("Hello"), response_model=City))
    assert partial[-1].name
    assert partial[-1].population
    return works("With `create_partial`.")


absent("tools", "The client calls no tools.")


@cell("forced")
def forced() -> Result:
    found = client().create(model="khala", messages=user("Which is the largest city?"), response_model=City)
    assert isinstance(found, City)
    return works("The mode `TOOLS` names the tool that must be called.")


@cell("structured")
def structured() -> Result:
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    for mode in modes:
        found = client(mode).create(model="khala", messages=user("Which is the largest city?"), response_model=City)
        assert isinstance(found, City)
    return works("With the modes `TOOLS` and `JSON_SCHEMA`.")


@cell("images")
def images() -> None:
    content = ["/echo Look.", instructor.Image.from_base64(PNG)]
    answer = client().create(model="khala", messages=user(content), response_model=None)
    assert answer.choices[0].message.content == "Look."


@cell("usage")
def usage() -> None:
    _, answer = client().create_with_completion(model="khala", messages=user("Hello"), response_model=City)
    assert answer.usage.completion_tokens > 0


@cell("cancel")
def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    headers = {"x-cancel-on-disconnect": "true"}
    with client().create(
        model="khala", messages=user(prompt), response_model=None, stream=True, extra_headers=headers
    ) as chunks:
        next(iter(chunks))
    assert is_canceled(prompt)
    return works("With the header `x-cancel-on-disconnect: true` in `extra_headers`.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "The client has no approvals.")


@cell("errors")
def errors() -> Result:
    def ask(model="khala", token=TOKEN):
        client(token=token).create(model=model, messages=user("Hello"), response_model=City, max_retries=1)

    return works("", failure(Exception, lambda: ask("gpt-none")), failure(Exception, lambda: ask(token=SPENT_TOKEN)))


run()
