"""The decorators of tools and agents, and how modules with them are loaded."""

import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from khala.sdk import AgentRunContext, AppTool, ToolCallContext, ToolFile, agent, prompt, resource, tool
from khala.sdk.loading import AppError, load_app
from khala.sdk.tool import as_result
from khala.sdk.uri_template import UriTemplate
from tests.support import app_agents, app_contents
from tests.support.mcp_client import call_context


def test_a_tool_gets_its_schema_from_the_function() -> None:
    spec = app_agents.weather.spec
    assert (spec.name, spec.description, spec.source) == ("weather", "Tell the weather of a day.", "app")
    properties = spec.parameters["properties"]
    assert list(properties) == ["place", "day", "unit"]
    assert properties["day"] == {"description": "When.", "format": "date", "type": "string"}
    assert properties["unit"]["enum"] == ["C", "F"]
    assert spec.parameters["required"] == ["place", "day"]
    assert spec.parameters["additionalProperties"] is False
    assert app_agents.pay.spec.parameters["properties"]["amount"] == {"exclusiveMinimum": 0, "type": "integer"}
    assert (app_agents.pay.spec.approval, app_agents.pay.spec.timeout) == ("ask", 5)


def test_a_tool_can_still_be_called_as_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALA_APP_JOURNAL", str(tmp_path / "journal"))
    assert app_agents.pay(3) == "Paid 3."


def without_docstring(city: str) -> str:
    return city


def without_hint(city) -> str:  # type: ignore[no-untyped-def]
    """Say where."""
    return str(city)


def with_rest(*cities: str) -> str:
    """Say where."""
    return ",".join(cities)


def with_object(place: sys.__class__) -> str:  # type: ignore[name-defined]
    """Say where."""
    return str(place)


def generator() -> Any:
    """Yield."""
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_docstring, "needs a docstring"),
        (without_hint, "needs a type hint"),
        (with_rest, "cannot be an argument"),
        (with_object, "cannot be described as JSON"),
        (generator, "returns its result"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_reason(function: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        tool(function)


@pytest.mark.parametrize("options", [{"name": "two words"}, {"name": "a__b"}, {"timeout": 0}, {"timeout": 1e9}])
def test_invalid_options_of_a_tool_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tool.s name|timeout"):
        tool(**options)(app_agents.pay)


@pytest.mark.parametrize(
    ("name", "options"),
    [("Two", {}), ("", {}), ("a" * 64, {}), ("fine", {"title": "t" * 101}), ("fine", {"examples": ["e" * 501]})],
)
def test_invalid_agents_are_refused(name: str, options: dict[str, Any]) -> None:
    async def function(context: AgentRunContext) -> None:
        """Do nothing."""

    with pytest.raises(ValueError, match=r"name has|at most"):
        agent(name, **options)(function)


def test_an_agent_is_an_async_function() -> None:
    with pytest.raises(TypeError, match="async"):
        agent("fine")(lambda context: None)  # type: ignore[arg-type,return-value]


def test_a_context_is_no_argument() -> None:
    @tool
    def where(when: date, context: ToolCallContext) -> str:
        """Say where."""
        return f"{when} {context.thread_id}"

    assert isinstance(where, AppTool)
    assert list(where.spec.parameters["properties"]) == ["when"]


def write(folder: Path, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(code)
    return name


HEAD = "from khala.sdk import agent, tool\n"
TOOL = HEAD + '@tool\ndef where() -> str:\n    """Say where."""\n    return ""\n'


def test_modules_are_found_in_the_folder(tmp_path: Path) -> None:
    name = write(tmp_path, "khala_test_app_one", TOOL)
    app = load_app([name], folder=tmp_path)
    assert list(app.tools) == ["where"]
    assert not app.agents
    assert not load_app([]).tools


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_there", "could not be imported: ModuleNotFoundError"),
        ("1/0", "could not be imported: ZeroDivisionError"),
        ("raise SystemExit(3)", "could not be imported: SystemExit"),
        ("def broken(:", "could not be imported: SyntaxError"),
        (TOOL + TOOL.replace("def where", "def other").replace("@tool\n", "@tool(name='where')\n"), "two tools"),
    ],
)
def test_a_module_that_cannot_be_used_is_named(tmp_path: Path, code: str, message: str) -> None:
    name = write(tmp_path, f"khala_test_app_{abs(hash(code))}", code)
    with pytest.raises(AppError, match=f"{name}.*{message}"):
        load_app([name], folder=tmp_path)


async def test_a_tool_may_return_files_beside_text() -> None:
    file = ToolFile(data=b"x", media_type="image/png")
    assert (await as_result(file, call_context())).content == (file,)
    assert (await as_result(["a", file, {"b": 1}], call_context())).content == ("a", file, '{"b":1}')
    assert (await as_result(["a", "b"], call_context())).output == ["a", "b"]


def test_a_prompt_gets_its_arguments_from_the_function() -> None:
    letter = app_contents.customer_letter
    assert (letter.name, letter.title, letter.function.description) == (
        "customer_letter", "Write to a customer", "Write a letter.",
    )  # fmt: skip
    assert list(letter.function.parameters) == ["customer", "tone", "lines"]
    assert letter.function.required == {"customer"}
    assert letter.function.choices["tone"] == ("formal", "friendly")
    assert app_contents.broken_prompt() == 3


def test_a_function_that_cannot_be_a_prompt_or_resource_is_refused_with_the_reason() -> None:
    def with_list(items: list[str]) -> str:
        return str(items)

    def no_variable() -> str:
        return ""

    for function, problem in ((with_list, "arguments are texts"), (without_hint, "type hint"), (generator, "return")):
        with pytest.raises(TypeError, match=problem):
            prompt(function)
    for uri in ("shop://a/{item}", "shop://a/{item}/{other}"):
        with pytest.raises(TypeError, match="a parameter for each variable"):
            resource(uri)(no_variable)
    with pytest.raises(ValueError, match="a name has"):
        prompt(name="two words")(no_variable)
    with pytest.raises(ValueError, match="timeout"):
        resource("shop://a", timeout=0)(no_variable)


@pytest.mark.parametrize(
    "uri",
    ["shop", "shop:", "a b://c", "khala://files/a", "KHALA://x", "shop://ä", "shop://{a}{b}", "shop://{+a}/{b}",
     "shop://{a}/{a}", "shop://{a", "shop://{a*}", "shop://{+a}/", "shop://" + "a" * 2_000],
)  # fmt: skip
def test_a_text_that_is_no_uri_of_a_resource_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"URI|variable|characters"):
        UriTemplate(uri)


@pytest.mark.parametrize(
    ("template", "uri", "variables"),
    [
        ("shop://a", "shop://a", {}),
        ("shop://a", "shop://a/", None),
        ("shop://{a}", "shop://x%20y", {"a": "x y"}),
        ("shop://{a}", "shop://", None),
        ("shop://{a}", "shop://x/y", None),
        ("shop://{a}-{b}", "shop://x-y-z", {"a": "x", "b": "y-z"}),
        ("shop://{a}/{+b}", "shop://x/y/z?q#f", {"a": "x", "b": "y/z?q#f"}),
        ("shop://{a}.json", "shop://x.json", {"a": "x"}),
        ("shop://{a}.json", "shop://xyjson", None),
    ],
)
def test_a_template_matches_uris(template: str, uri: str, variables: dict[str, str] | None) -> None:
    assert UriTemplate(template).match(uri) == variables


def test_a_template_matches_in_linear_time() -> None:
    template = UriTemplate("shop://" + "-".join(f"{{v{number}}}" for number in range(10)) + "/end")
    began = time.perf_counter()
    assert template.match("shop://" + "-" * 1_900) is None
    assert template.match("shop://" + "a-" * 900) is None
    assert time.perf_counter() - began < 0.5


def test_prompts_and_resources_are_collected_and_names_are_unique(tmp_path: Path) -> None:
    app = load_app([app_contents.MODULE])
    assert "dialogue" in app.prompts
    assert app.resources["stock"].is_template
    head = "from khala.sdk import prompt, resource\n"
    twice = head + '@prompt(name="a")\ndef one() -> str: return ""\n@prompt(name="a")\ndef two() -> str: return ""\n'
    with pytest.raises(AppError, match="two prompts with the name a"):
        load_app([write(tmp_path, "khala_test_app_prompts", twice)], folder=tmp_path)
    same = head + '@resource("a:b")\ndef one() -> str: return ""\n@resource("a:b")\ndef two() -> str: return ""\n'
    with pytest.raises(AppError, match="two resources with the URI a:b"):
        load_app([write(tmp_path, "khala_test_app_uris", same)], folder=tmp_path)
