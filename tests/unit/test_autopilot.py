"""The autopilot's decisions on real replies of models: whether a reply is an answer, and when to stop."""

from typing import Any
from uuid import UUID

import pytest

from khala.domain.autopilot import (
    MAX_FAILED_STEPS,
    MAX_IDENTICAL_STEPS,
    MAX_PLAN_CHARACTERS,
    AutopilotLimits,
    StopReason,
    only_asks_or_plans,
    stop_reason,
)
from khala.domain.parts import BlobRef, ToolResult
from khala.domain.run_progress import RunStep, ToolCallProgress

ASKS = [
    "Shall I go on?",
    "Should I delete the old files as well?",
    "Would you like me to create the file?",
    "Do you want me to run the tests now?",
    "I can look this up. Shall I?",
    "I could read the file first. Would you like me to do that?",
    "Is that OK?",
    "Is this okay with you?",
    "Ready to proceed?",
    "**Should I continue?**",
    'Shall we begin with "notes.txt"?',
    "Let me know if you'd like me to proceed.",
    "Okay! Shall we start?",
    "I need your permission to write to the workspace. Can I proceed?",
    "This will take three steps:\n\n1. Read the file\n2. Change it\n3. Write it\n\nShall I proceed?",
]
PLANS = [
    "I will now read the file.",
    "I'll start by listing the files.",
    "I’ll start by listing the files.",
    "Let me look at the workspace first.",
    "Sure! Let me check the list for you.",
    "Okay, I'm going to search for it.",
    "First, I will read the notes. Then I will summarise them.",
    "Next, I'll update the configuration.",
    "Now let me check the other file.",
    "Let's look at what we have.",
    "Great, I'll do that right away.",
    "I am going to run the code now.",
    "Certainly. I will search the web for it.",
    "My plan is to read the file and change the colour.",
    "I'll read the file:",
    "I need to look at the file first.",
    "Let me check…",
    "One moment, let me look that up.",
]
ANSWERS = [
    "Yes.",
    "No.",
    "42",
    "42.",
    "Paris",
    "The capital of France is Paris.",
    "The next train leaves at noon; I found two more.",
    "Next Monday is a holiday.",
    "First come, first served.",
    "First, boil the water. Then add the tea.",
    "Then it is settled.",
    "Now is a good time to plant trees.",
    "I will always love you is a song by Dolly Parton.",
    'The song is "I Will Always Love You".',
    "I can't open that page: it wants a password.",
    "I cannot help with that.",
    "I can not do this, because the tool is forbidden here.",
    "I can see three files: a.txt, b.txt and c.txt.",
    "I can confirm that the file has 12 lines.",
    "I will not do that.",
    "I won't do that.",
    "I would say about 20 minutes.",
    "I would recommend the second one.",
    "I would choose Postgres: it is simpler to run.",
    "I'd go with the second one.",
    "I need to know your time zone to answer that.",
    "I need more to go on: which of the two files do you mean?",
    "Let me know if you need anything else.",
    "The file is written. Let me know if you would like any changes!",
    "There are two files here. May I overwrite them?",
    "I found two files here. May I overwrite them?",
    "I'll use Postgres for this.",
    "I'll add 2 and 3, which gives 5.",
    "I will write a poem:\n\nRoses are red,\nviolets are blue.",
    "Let me check: yes, it is open.",
    "I will read the file. It says: hello.",
    "Okay, I will. The list has three items.",
    "Here is my plan:\n\n1. Read the file\n2. Change it\n3. Write it",
    "The weather is fine today. Would you like me to check tomorrow's?",
    "The total is 12.50 €. Do you want me to convert it to dollars?",
    "It failed because the disk is full. Should I try again?",
    "Done.",
    "Done! I created notes.txt. Shall I open it?",
    "I've written the file. Do you want me to run it?",
    "I have checked the list; it is empty.",
    "I checked the list; it is empty.",
    "Let me explain: a monad is a monoid in the category of endofunctors.",
    "Let me put it this way: it depends on how often you write.",
    "Let me be clear: nobody knows.",
    "Let's say that x is 3. Then y is 6.",
    "Let's see: 6 times 7 is 42.",
    "Let me think. 17 is prime, and so is 19.",
    "I'll be honest: this code is slow.",
    "I'll keep it short: no.",
    "I will answer with one word: yes.",
    "I will be 30 next year. That's what the text says.",
    "Which of the two files do you mean?",
    "What is your name?",
    "Who should I say is calling?",
    "What should I call the file?",
    "Which colour would you like me to use?",
    "How may I help you?",
    "How can I help you today?",
    "Hello! How can I help you?",
    "What can I do for you?",
    "To be, or not to be?",
    '"Shall I compare thee to a summer\'s day?" is the first line of Sonnet 18.',
    'The first line is "Shall I compare thee to a summer\'s day?"',
    "The sentence means: may I come in?",
    'In English: "Can I have the bill?"',
    "```python\nprint('Shall I?')\n```",
    "I'll use this:\n\n```sh\nls\n```",
    "- one\n- two\n- three",
    "1. Read the file.\n2. Change it.\n3. Write it.",
    "| a | b |\n| --- | --- |\n| 1 | 2 |",
    "There are 12 files. The next step would be to sort them.",
    "My plan for the week: Monday swimming, Tuesday running, Wednesday rest.",
    "My plan would be to wait.",
    "My plan: read the file, change the colour, write it back.",
    "Right now it is raining.",
    "Of course you can.",
    "Sure, that works.",
    "Ja.",
    "Nein, das geht nicht.",
    "Die Datei hat zwölf Zeilen.",
    "Berlin ist die Hauptstadt von Deutschland.",
    "Als Nächstes kommt der Zug um zwölf.",
    "好的。",
    "C'est la vie.",
    "👍",
    "…",
    "",
    "   \n",
    "I'll",
]
GERMAN = [
    "Soll ich weitermachen?",
    "Ich werde jetzt die Datei lesen.",
]
"""Not understood, so taken for answers: a real answer that is asked for again is worse than a plan that is not."""


@pytest.mark.parametrize("reply", [*ASKS, *PLANS])
def test_a_reply_that_only_asks_or_plans_is_recognised(reply: str) -> None:
    assert only_asks_or_plans(reply)


@pytest.mark.parametrize("reply", [*ANSWERS, *GERMAN])
def test_an_answer_is_an_answer(reply: str) -> None:
    assert not only_asks_or_plans(reply)


@pytest.mark.parametrize("reply", [*ASKS, *PLANS])
def test_a_reply_with_further_content_is_an_answer(reply: str) -> None:
    assert not only_asks_or_plans("The list has no end. " * (MAX_PLAN_CHARACTERS // 20) + reply)


@pytest.mark.parametrize("reply", [*ASKS, *PLANS])
def test_space_around_a_reply_changes_nothing(reply: str) -> None:
    assert only_asks_or_plans(f"\n  {reply}\n\n")


def blob(sha256: str) -> BlobRef:
    return BlobRef(blob_id=UUID(int=1), size=9, sha256=sha256, media_type="text/plain")


def call(
    number: int, *, ok: bool = True, output: Any = "same", blob_ref: BlobRef | None = None, **args: Any
) -> ToolCallProgress:
    result = ToolResult(tool_call_id=f"c{number}", ok=ok, summary="s", duration_ms=number, output=output, blob=blob_ref)
    return ToolCallProgress(id=f"c{number}", tool="grep", args=args, state="completed", result=result)


def run_steps(*calls: list[ToolCallProgress]) -> list[RunStep]:
    return [RunStep(step=step, calls=made) for step, made in enumerate(calls, 1)]


ROOMY = AutopilotLimits(steps=50)


@pytest.mark.parametrize(("done", "why"), [(0, None), (2, None), (3, "max_steps"), (4, "max_steps")])
def test_after_the_maximum_of_steps_the_run_stops(done: int, why: StopReason | None) -> None:
    assert stop_reason(run_steps(*([call(n, output=n)] for n in range(done))), AutopilotLimits(steps=3)) == why


def test_a_reply_without_calls_does_not_count_as_a_step() -> None:
    found = run_steps([call(1)], [], [], [call(2, output="other")], [])
    assert stop_reason(found, AutopilotLimits(steps=3)) is None
    assert stop_reason(found, AutopilotLimits(steps=2)) == "max_steps"


@pytest.mark.parametrize(("most", "why"), [(7, None), (6, "budget"), (5, "budget")])
def test_calls_are_limited_over_all_steps(most: int, why: StopReason | None) -> None:
    found = run_steps(*([call(n, output=n), call(n + 1, output=n)] for n in range(3)))
    assert stop_reason(found, AutopilotLimits(steps=50, calls=most)) == why


def test_the_same_calls_with_the_same_results_are_no_progress() -> None:
    same = [[call(n, pattern="x")] for n in range(MAX_IDENTICAL_STEPS)]
    assert stop_reason(run_steps(*same), ROOMY) == "no_progress"
    assert stop_reason(run_steps(*same[1:]), ROOMY) is None
    assert stop_reason(run_steps([call(9, output="first")], *same), ROOMY) == "no_progress"
    assert stop_reason(run_steps(*same, [call(9, output="news")]), ROOMY) is None


def test_replies_between_the_same_calls_are_no_progress() -> None:
    assert stop_reason(run_steps([call(1)], [], [call(2)], [], [call(3)]), ROOMY) == "no_progress"


@pytest.mark.parametrize(
    "third",
    [call(3, output="other"), call(3, ok=False), call(3, pattern="y"), call(3, blob_ref=blob("b" * 64))],
    ids=["output", "failure", "arguments", "blob"],
)
def test_the_same_calls_with_different_results_are_progress(third: ToolCallProgress) -> None:
    assert stop_reason(run_steps([call(1)], [call(2)], [third]), ROOMY) is None


def test_outputs_in_blobs_are_compared_by_their_hash() -> None:
    alike = [[call(n, output=None, blob_ref=blob("a" * 64))] for n in range(3)]
    assert stop_reason(run_steps(*alike), ROOMY) == "no_progress"
    changing = [[call(n, output=None, blob_ref=blob(f"{n}" * 64))] for n in range(3)]
    assert stop_reason(run_steps(*changing), ROOMY) is None


def test_one_call_more_or_less_makes_a_different_step() -> None:
    assert stop_reason(run_steps([call(1)], [call(2)], [call(3), call(4)]), ROOMY) is None


def test_the_order_of_arguments_makes_no_difference() -> None:
    found = run_steps([call(1, a=1, b=2)], [call(2, b=2, a=1)], [call(3, a=1, b=2)])
    assert stop_reason(found, ROOMY) == "no_progress"


def test_steps_in_which_every_call_fails_are_no_progress_and_one_success_is() -> None:
    failing = [[call(n, ok=False, output=n), call(n, ok=False, output=n)] for n in range(MAX_FAILED_STEPS)]
    assert stop_reason(run_steps(*failing), ROOMY) == "no_progress"
    assert stop_reason(run_steps(*failing[1:]), ROOMY) is None
    replies: list[list[ToolCallProgress]] = [[] for _ in failing]
    between = [round_ for pair in zip(failing, replies, strict=True) for round_ in pair]
    assert stop_reason(run_steps(*between), ROOMY) == "no_progress", (
        "replies between failing steps do not count as success"
    )
    assert stop_reason(run_steps(*between[:-2]), ROOMY) is None, "replies do not count as failure either"
    failing[2] = [call(2, ok=False, output=2), call(2, output=2)]
    assert stop_reason(run_steps(*failing), ROOMY) is None


def test_the_step_limit_takes_precedence_over_other_reasons() -> None:
    assert stop_reason(run_steps(*([call(n)] for n in range(3))), AutopilotLimits(steps=3, calls=3)) == "max_steps"
