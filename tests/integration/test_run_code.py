"""`run_code`: the results as the model reads them."""

from collections.abc import AsyncIterator

import jsonschema_rs
import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.tools import ToolActor
from khala.tools.port import CallContext, CallResult
from khala.tools.run_code import RunCode
from khala.tools.sandbox import Sandbox
from tests.support.sandbox_programs import BoundedProgramSink, sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def inside() -> AsyncIterator[Sandbox]:
    yield await sandbox()


async def run(
    inside: Sandbox, code: str, sink: BoundedProgramSink, language: str = "python", seconds: float = 10
) -> CallResult:
    tool = RunCode(inside, seconds=seconds)
    args = {"language": language, "code": code, "stdin": "given"}
    jsonschema_rs.validate(tool.spec.parameters, args)
    call = CallContext(id="1", idempotency_key="1", actor=ToolActor(owner_id=ids.new()), sink=sink)
    return await tool.run(args, call)


async def test_output_goes_to_the_sink(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    result = await run(inside, "import sys\nprint('got', sys.stdin.read())", sink)
    assert sink.text == "got given\n"
    assert (result.ok, result.output, result.code) == (True, None, None)
    assert result.summary is not None
    assert result.summary.startswith("exited 0 in 0.")
    assert result.media_type.startswith("text/plain")


async def test_a_silent_program_has_empty_output(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    result = await run(inside, "pass", sink)
    assert (result.ok, result.output, sink.size) == (True, "", 0)


async def test_a_failure_has_the_details_that_the_model_needs_to_fix_it(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    result = await run(inside, "print('before')\nprint(1 / 0)", sink)
    assert (result.ok, result.output, result.code) == (False, None, "failed")
    assert sink.text.startswith("before\n\n[stderr]\nTraceback")
    assert "line 2" in sink.text
    assert sink.text.endswith("ZeroDivisionError: division by zero\n\n[exited 1]\n")


async def test_warnings_of_a_successful_program_are_reported_too(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    result = await run(inside, "echo fine; echo careful >&2", sink, "shell")
    assert result.ok
    assert sink.text == "fine\n\n[stderr]\ncareful\n"


async def test_a_timeout_is_reported_with_the_output_so_far(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    result = await run(inside, "print('so far')\nwhile True: pass", sink, seconds=0.5)
    assert (result.ok, result.code) == (False, "timeout")
    assert sink.text == "so far\n\n[stopped: it ran out of time]\n"


async def test_a_flood_of_output_is_reported_with_its_end(inside: Sandbox) -> None:
    sink = BoundedProgramSink(max_bytes=100_000)
    result = await run(inside, "for n in range(10**9): print('line', n)", sink)
    assert (result.ok, result.code) == (False, "too_large")
    assert "it wrote too much" in result.output
    assert "\nline " in result.output
    assert len(result.output) < 9000


async def test_the_offered_languages_are_those_that_work_on_this_machine(inside: Sandbox) -> None:
    spec = RunCode(inside).spec
    jsonschema_rs.meta.validate(spec.parameters)
    assert spec.parameters["properties"]["language"]["enum"] == sorted(inside.languages)
    assert (spec.name, spec.approval, spec.idempotent) == ("run_code", "ask", True)
    assert spec.permissions == {"code"}
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(spec.parameters, {"language": "python", "code": "x" * 100_001})
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(spec.parameters, {"language": "perl", "code": ""})
