"""The demo model as an agent: the tools it is told to call, the steps, and how it continues from any point."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.plan import PlannedStep
from khala.domain.plans.planner import PLANNER_INSTRUCTIONS
from khala.domain.tools import ToolSpec
from khala.models.demo import directives as demo_directives
from khala.models.demo import script
from khala.models.demo.model import DemoModel
from khala.models.demo.script import HELP
from khala.models.demo.tools import direct
from khala.models.port import (
    SUMMARISE,
    Completed,
    ModelEvent,
    ModelFailed,
    Prompt,
    PromptFile,
    PromptTurn,
    TextChunk,
    ToolOutcome,
    ToolUse,
)

PLANNER = (ToolSpec(name="plan_create", description="Plans.", parameters={"type": "object"}),)
IN_STEP = (ToolSpec(name="complete_step", description="Ends.", parameters={"type": "object"}),)
TOOLS = (ToolSpec(name="echo", description="Says it again.", parameters={"type": "object"}),)


def user(text: str, *files: PromptFile) -> PromptTurn:
    return PromptTurn(role="user", text=text, files=files)


def prompt_of(*turns: PromptTurn, tools: tuple[ToolSpec, ...] = TOOLS, said: str = "", system: str = "") -> Prompt:
    return Prompt(system=system, turns=turns, tools=tools, partial_answer=said)


async def ask(prompt: Prompt, model: DemoModel | None = None) -> list[ModelEvent]:
    async with (model or DemoModel()).stream(prompt) as events:
        return [event async for event in events]


async def reply(*turns: PromptTurn, tools: tuple[ToolSpec, ...] = TOOLS, said: str = "") -> tuple[str, Completed]:
    events = await ask(prompt_of(*turns, tools=tools, said=said))
    end = events[-1]
    assert isinstance(end, Completed)
    assert (end.finish_reason == "tool_calls") == bool(end.uses)
    return "".join(event.text for event in events if isinstance(event, TextChunk)), end


def step_turns(text: str, end: Completed, *, ok: bool = True) -> tuple[PromptTurn, PromptTurn]:
    """The turns that the run adds after a step."""
    outcomes = tuple(ToolOutcome(id=use.id, name=use.name, text=f"did {use.args}", ok=ok) for use in end.uses)
    return PromptTurn(role="assistant", text=text, uses=end.uses), PromptTurn(role="tool", outcomes=outcomes)


def calls_of(end: Completed) -> list[tuple[str, dict[str, object]]]:
    return [(use.name, use.args) for use in end.uses]


async def conversation(question: PromptTurn, most: int = 9) -> tuple[list[list[tuple[str, dict[str, object]]]], str]:
    """The calls of each step, and the answer at the end."""
    turns: list[PromptTurn] = [question]
    rounds: list[list[tuple[str, dict[str, object]]]] = []
    for _ in range(most):
        text, end = await reply(*turns)
        if not end.uses:
            return rounds, text
        rounds.append(calls_of(end))
        turns += step_turns(text, end)
    return rounds, ""


async def test_a_call_is_made_and_then_its_outcome_is_summarised() -> None:
    rounds, answer = await conversation(user('/pace=0 Please /call echo {"a": {"b": "x } y"}}'))
    assert rounds == [[("echo", {"a": {"b": "x } y"}})]]
    assert answer == "The tools returned:\n\n- `echo`: ok: did {'a': {'b': 'x } y'}}"


async def test_calls_in_a_row_are_one_step_and_then_starts_the_next() -> None:
    message = '/pace=0 /call one /call two {"n": 2} /then /call three{"n":\n3} /say All /three. /echoes.\nNot this.'
    rounds, answer = await conversation(user(message))
    assert rounds == [[("one", {}), ("two", {"n": 2})], [("three", {"n": 3})]]
    assert answer == "All /three. /echoes."


async def test_ids_are_unique_in_a_run_and_the_same_every_time() -> None:
    question = user("/pace=0 /times=2 /call a /call b /then /call a")
    text, end = await reply(question)
    _, again = await reply(question)
    _, further = await reply(question, *step_turns(text, end))
    assert end == again
    assert len({use.id for use in (*end.uses, *further.uses)}) == 4


async def test_a_call_is_repeated_with_its_number() -> None:
    _, end = await reply(user('/pace=0 /times=200 /call echo {"text": "no {i}", "deep": [{"{i}": "{i}"}], "n": 1}'))
    assert len(end.uses) == 200
    assert end.uses[199].args == {"text": "no 200", "deep": [{"{i}": "200"}], "n": 1}


async def test_calls_are_bounded() -> None:
    _, end = await reply(user("/times=999999999 /call a"))
    assert len(end.uses) == demo_directives.MAX_REPEATS
    _, end = await reply(user("/times=256 /call a " * 5))
    assert len(end.uses) == demo_directives.MAX_CALLS


async def test_braces_stay_if_nothing_is_repeated() -> None:
    _, end = await reply(user('/call run_code {"code": "print(f\'{i} {round}\')"}'))
    assert end.uses[0].args == {"code": "print(f'{i} {round}')"}


async def test_a_loop_never_ends_and_counts_its_steps() -> None:
    rounds, answer = await conversation(user('/pace=0 /loop /call first /then /call echo {"n": "{round}"}'), most=5)
    assert rounds == [[("first", {})], *([("echo", {"n": str(number)})] for number in range(2, 6))]
    assert answer == ""


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('{"a": ', "not valid JSON"),
        ("{a: 1}", "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"a":' + "[" * 3000 + "]" * 3000 + "}", "too deeply"),
    ],
)
async def test_invalid_arguments_make_a_call_with_a_problem(written: str, problem: str) -> None:
    _, end = await reply(user(f'/call bad {written} /call good {{"a": 1}}\n/pace=0'))
    bad, good = end.uses
    assert (bad.name, bad.args) == ("bad", {})
    assert problem in (bad.problem or "")
    assert good == ToolUse(id=good.id, name="good", args={"a": 1})


async def test_directives_in_arguments_and_after_echo_are_text() -> None:
    rounds, answer = await conversation(user('/pace=0 /call a {"text": "now /words=3 /then /loop"} /echo /call b {}'))
    assert rounds == [[("a", {"text": "now /words=3 /then /loop"})]]
    assert answer == "/call b {}"


async def test_the_other_directives_apply_to_the_answer() -> None:
    rounds, answer = await conversation(user("/words=2 /pace=0 /call a"))
    assert (rounds, answer) == ([[("a", {})]], "word1 word2")


async def test_text_comes_before_the_calls_of_its_step_and_continues_where_it_ended() -> None:
    question = user("/pace=0 /text Let me see. /call a /then /text And now: /call b")
    text, end = await reply(question)
    assert (text, calls_of(end)) == ("Let me see.", [("a", {})])
    assert (await reply(question, said="Let me"))[0] == " see."
    assert (await reply(question, *step_turns(text, end)))[0] == "And now:"


async def test_a_reply_that_only_asks_is_followed_by_the_steps_after_a_request_to_continue() -> None:
    question = user("/pace=0 /ask Shall I? /plan /call a /say Done.")
    text, end = await reply(question)
    assert (text, end.uses) == ("Shall I?", ())
    turns = [question, PromptTurn(role="assistant", text=text), user("Go on until all is done.")]
    text, end = await reply(*turns)
    assert text == "I will call the tools one round after the other, and then answer."
    turns += [PromptTurn(role="assistant", text=text), user("Go on until all is done.")]
    text, end = await reply(*turns)
    assert calls_of(end) == [("a", {})]
    assert (await reply(*turns, *step_turns(text, end)))[0] == "Done."


async def test_a_request_to_continue_amid_the_steps_changes_nothing() -> None:
    question = user("/pace=0 /call a /then /call b")
    text, end = await reply(question)
    _, end = await reply(question, *step_turns(text, end), user("Two rounds are left."))
    assert calls_of(end) == [("b", {})]


def test_the_next_question_starts_its_own_steps() -> None:
    before = (user("/call a {}"), PromptTurn(role="assistant", text="The tools have answered."))
    message, script = direct(prompt_of(*before, user("Hello?")))
    assert (message, script.uses) == ("Hello?", ())
    assert "You asked: “Hello?”" in "".join(script.tokens)


def test_an_unanswered_question_is_not_repeated() -> None:
    assert direct(prompt_of(user("/call a {}"), user("Hello?")))[0] == "Hello?"
    assert direct(prompt_of(user("/call a {}"), user("/words=3")))[1].uses == ()


async def test_without_tools_it_reports_its_progress() -> None:
    question = user('/pace=0 /loop /call echo {"n": "{round}"}')
    first, second = await reply(question), await reply(question, *step_turns(*await reply(question)))
    text, end = await reply(question, *step_turns(*first), *step_turns(*second, ok=False), tools=())
    assert text == "Stopped after 2 rounds.\n\nThe tools returned:\n\n- `echo`: failed: did {'n': '2'}"
    assert end.finish_reason == "stop"
    assert (await reply(question, tools=()))[0].startswith("Stopped after 0 rounds.")
    assert (await reply(question, *step_turns(*first), tools=()))[0].startswith("Stopped after 1 round.")


async def test_a_long_list_of_outcomes_is_truncated() -> None:
    _, answer = await conversation(user('/pace=0 /times=30 /call echo {"text": "' + "x" * 500 + '"}'))
    lines = answer.split("\n")
    assert (len(lines), lines[-1]) == (23, "- and 10 more")
    assert max(map(len, lines)) < 250


def as_text(turns: Sequence[PromptTurn]) -> list[PromptTurn]:
    """The turns as a summary's prompt presents them, in which every call is followed by its outcome."""
    converted: list[PromptTurn] = []
    for turn in turns:
        calls = [use.name + msgspec.json.encode(use.args).decode() for use in turn.uses]
        text = "\n".join((turn.text, *calls, *(outcome.text for outcome in turn.outcomes))).strip()
        converted.append(PromptTurn(role="assistant" if turn.role == "assistant" else "user", text=text))
    return converted


async def turns_of_steps(question: PromptTurn, count: int) -> list[PromptTurn]:
    turns: list[PromptTurn] = []
    for _ in range(count):
        turns += step_turns(*await reply(question, *turns))
    return turns


@pytest.mark.parametrize("plain", [False, True])
async def test_a_plan_continues_after_a_summary_of_its_steps(plain: bool) -> None:
    question = user('/pace=0 /loop /text Next: /call echo {"n": "{round}"}')
    earlier = [
        user("/call a"),
        *await turns_of_steps(user("/call a"), 1),
        PromptTurn(role="assistant", text="It went well."),
    ]
    turns = [*earlier, *await turns_of_steps(question, 3)]
    request = user(f"{SUMMARISE} in a few words.")
    summary, _ = await reply(*(as_text(turns) if plain else turns), request, tools=())
    assert summary.startswith("Summary of 10 messages. Rounds of tools so far: 3.")
    summary_turn = PromptTurn(role="system", text=f"So far:\n{summary}")
    for prompt in (
        prompt_of(summary_turn, question),
        prompt_of(question, summary_turn),
        prompt_of(question, system=summary_turn.text),
    ):
        end = (await ask(prompt))[-1]
        assert isinstance(end, Completed)
        assert calls_of(end) == [("echo", {"n": "4"})]
    text, end = await reply(summary_turn, question)
    later = [summary_turn, *step_turns(text, end)]
    again, _ = await reply(*(as_text(later[1:]) if plain else later[1:]), request, tools=())
    assert "so far: 1." in again
    again, _ = await reply(summary_turn, *(as_text(later[1:]) if plain else later[1:]), request, tools=())
    assert "so far: 4." in again


async def test_a_summary_of_answered_questions_has_no_steps() -> None:
    question = user("/pace=0 /call a")
    turns = (question, *await turns_of_steps(question, 1), PromptTurn(role="assistant", text="It went well."))
    summary, _ = await reply(*turns, user(SUMMARISE), tools=())
    assert summary == "Summary of 4 messages. Rounds of tools so far: 0. The last words were: It went well."
    _, end = await reply(PromptTurn(role="system", text=summary), question)
    assert calls_of(end) == [("a", {})]


async def test_files_are_named_in_the_answer() -> None:
    files = (
        PromptFile(name="a b.png", media_type="image/png", data=b"12345"),
        PromptFile(name="c", media_type="text/x", data=b""),
    )
    listed = "- `a b.png`: image/png, 5 bytes\n- `c`: text/x, 0 bytes\n"
    assert listed in (await reply(user("What is it? /pace=0", *files)))[0]
    assert (await reply(user("/say Nice. /pace=0", *files)))[0] == f"Nice.\n\nAttached files:\n\n{listed}"
    spurred = (user("/pace=0 /ask /call a", *files), PromptTurn(role="assistant", text="Shall I go on?"), user("Yes."))
    assert listed in (await reply(*spurred, *step_turns(*await reply(*spurred))))[0]
    assert (await reply(user("/words=1 /pace=0", *files)))[0] == "word1"


async def test_a_step_can_lose_its_connection_always_or_so_many_times() -> None:
    model = DemoModel()
    question = user("/pace=0 /failround=2,1 /text Hm. /call a /then /call b")
    turns = (question, *step_turns(*await reply(question)))
    with pytest.raises(ModelFailed) as caught:
        await ask(prompt_of(*turns), model)
    assert (caught.value.code, caught.value.midstream) == ("connection_lost", False)
    end = (await ask(prompt_of(*turns), model))[-1]
    assert isinstance(end, Completed)
    assert calls_of(end) == [("b", {})]
    for _ in range(3):
        with pytest.raises(ModelFailed) as caught:
            await ask(prompt_of(user("/pace=0 /failround=1 /text Hm. /call a")), model)
        assert caught.value.midstream


async def test_a_step_can_hang_and_can_be_slow() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reply(user("/hanground=1 /call a"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await reply(user("/wait=0.1 /call a"))
    assert loop.time() - began >= 0.1


async def test_calls_count_as_output_tokens_and_offered_tools_are_free() -> None:
    question = user('/pace=0 /call echo {"text": "12345678"}')
    _, end = await reply(question)
    _, offered = await reply(question, tools=TOOLS * 9)
    assert end.usage == offered.usage
    assert end.usage.output_tokens == 1 + 5
    _, later = await reply(question, *step_turns("", end))
    assert later.usage.input_tokens > end.usage.input_tokens + 10


async def test_help_lists_these_directives_too() -> None:
    for name in ("call", "then", "times", "loop", "text", "say", "ask", "plan", "wait", "failround", "hanground"):
        assert f"`/{name}" in HELP


UNREADABLE = ("/call", "/call {}", "/calls x", "/times=", "/times=x", "/wait=", "/loops", "x/call y", "/failround=x")


@pytest.mark.parametrize("word", UNREADABLE)
def test_an_invalid_directive_is_an_ordinary_word(word: str) -> None:
    directives = demo_directives.parse(word)
    assert (directives.empty, directives.rest) == (True, word)


@given(st.text(), st.lists(st.sampled_from(["/call a", "/then", "/loop", "/times=2", '{"a"', "}", "/say", "\n", " "])))
def test_every_message_is_parsed(text: str, words: list[str]) -> None:
    directives = demo_directives.parse(" ".join([*words, text]))
    for number in range(1, len(directives.steps) + 2):
        assert not directives.steps or list(demo_directives.calls(directives, number))


async def test_a_goal_without_directives_becomes_a_plan_and_a_step_without_directives_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(script, "DEFAULT_PACE", 0)
    goal = user("Fly to Aiur. /nothing")
    first = await ask(prompt_of(goal, tools=PLANNER, system=f"Hello.\n\n{PLANNER_INSTRUCTIONS}"))
    assert isinstance(first[-1], Completed)
    [(name, args)] = calls_of(first[-1])
    assert (name, args["title"], args["goal"]) == ("plan_create", "Fly to Aiur. nothing", goal.text)
    made = [msgspec.convert(step, PlannedStep) for step in msgspec.convert(args["steps"], list[dict[str, object]])]
    check_steps(made)
    assert len(made) == 3
    for ok, said in ((True, "The plan is made."), (False, "`plan_create`: failed")):
        turns = goal, *step_turns("", first[-1], ok=ok)
        after = await ask(prompt_of(*turns, tools=PLANNER, system=f"Hello.\n\n{PLANNER_INSTRUCTIONS}"))
        assert said in "".join(event.text for event in after if isinstance(event, TextChunk))
    for task, tools in ((goal, PLANNER), (user("Explain /words=2"), IN_STEP), (goal, IN_STEP)):
        assert not (await reply(task, tools=tools))[1].uses, "no goal to plan, a directive, and no step"
    text, end = await reply(user("# Plan: Trip\n\nFly\n\n# Your step: Pack\n\nQuickly."), tools=IN_STEP)
    assert "“Pack”" in text
    assert [name for name, _ in calls_of(end)] == ["complete_step"]
