"""Prompts: never longer than the limit, with the newest messages, and no call without its outcome."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.autopilot import CONTINUE_PROMPT
from khala.domain.chat import Message
from khala.domain.fold import Block, CompactionBlock, FileBlock, TextBlock, ToolBlock
from khala.domain.parts import BlobRef, Compaction, ToolResult
from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress
from khala.domain.tools import ToolSpec
from khala.models.port import ModelFailed, PromptTurn
from khala.models.token_counter import IMAGE_TOKENS, TokenCounter, estimate_tool
from khala.runs.prompt import KEPT_STEPS, FittedPrompt, PromptInput, ToolOffer, fit, system_prompt
from khala.runs.prompt_files import FolderContents
from khala.runs.prompt_items import SUMMARY_HEADING
from khala.runs.prompt_messages import MAX_SHORT_CHARACTERS, output_text
from khala.runs.prompt_tokens import ModelTokenCounter
from khala.store.threads.folder_files import StoredFolderFile

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class CharacterCounter(ModelTokenCounter):
    """A token counter for which every character is a token."""

    def __init__(self) -> None:
        super().__init__(TokenCounter(), "none")

    def text(self, text: str) -> int:
        return len(text)

    def tool(self, spec: ToolSpec) -> int:
        return estimate_tool(spec)


TOKEN_COUNTER = CharacterCounter()


def message(number: int, *blocks: Block | str, role: Literal["user", "assistant", "system"] = "user") -> Message:
    content = tuple(TextBlock(text=block) if isinstance(block, str) else block for block in blocks)
    return Message(
        id=UUID(int=number), thread_id=UUID(int=1), role=role, status="final", seq=0, content=content, created_at=NOW,
        updated_at=NOW,
    )  # fmt: skip


def block(number: int, output: Any = "out", **more: Any) -> ToolBlock:
    made: dict[str, Any] = {"tool": "grep", "state": "completed", "args": {}} | more
    return ToolBlock(tool_call_id=f"c{number}", output=output, **made)


def call(call_id: str, output: Any = "out", blob: BlobRef | None = None, **args: Any) -> ToolCallProgress:
    result = ToolResult(tool_call_id=call_id, ok=True, summary="s", duration_ms=1, output=output, blob=blob)
    return ToolCallProgress(id=call_id, tool="grep", args=args, state="completed", result=result)


def blob(number: int = 1, *, size: int = 9, media_type: str = "text/plain", preview: str = "") -> BlobRef:
    return BlobRef(
        blob_id=UUID(int=number), size=size, sha256="0" * 64, media_type=media_type, preview=preview, name=f"f{number}"
    )


def spec(name: str, size: int) -> ToolSpec:
    return ToolSpec(name=name, description="x" * size, parameters={"type": "object"})


def fitted(
    history: Sequence[Message],
    *,
    limit: int = 10_000,
    rounds: Sequence[RunStep] = (),
    said: str = "",
    compaction: Compaction | None = None,
    files: dict[UUID, bytes] | None = None,
    tools: Sequence[ToolSpec] = (),
    instruction: str = "",
    reads_tools: bool = True,
) -> FittedPrompt:
    progress = RunProgress(steps=list(rounds), pending_text=said, compaction=compaction)
    content = PromptInput(history=history, progress=progress, files=files or {}, instruction=instruction)
    offer = ToolOffer(specs=tools)
    return fit(content, system="system", tools=offer, limit=limit, token_counter=TOKEN_COUNTER, reads_tools=reads_tools)


def cost(found: FittedPrompt) -> int:
    prompt = found.prompt
    return (
        len(prompt.system)
        + len(prompt.partial_answer)
        + TOKEN_COUNTER.turns(prompt.turns)
        + sum(map(estimate_tool, prompt.tools))
    )


def texts(found: FittedPrompt) -> list[str]:
    return [turn.text for turn in found.prompt.turns]


def assert_paired(turns: Sequence[PromptTurn]) -> None:
    """Assert that every turn with tool calls is followed by their outcomes in order, and no other outcomes exist."""
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        if turn.uses:
            assert after is not None
            assert [outcome.id for outcome in after.outcomes] == [use.id for use in turn.uses]
    for before, turn in zip([None, *turns[:-1]], turns, strict=True):
        if turn.outcomes:
            assert before is not None
            assert before.uses


sizes = st.integers(0, 300)
letters = sizes.map(lambda size: "x" * size)
histories = st.lists(
    st.tuples(letters, st.none() | st.lists(sizes, min_size=1, max_size=3), st.sampled_from(["user", "assistant"])),
    min_size=1, max_size=8,
)  # fmt: skip
progresses = st.lists(st.tuples(letters, st.lists(sizes, max_size=3)), max_size=6)


def _history(drawn: list[tuple[str, list[int] | None, str]]) -> list[Message]:
    found = []
    for place, (text, outputs, role) in enumerate(drawn):
        used = [block(100 * place + at, "o" * size, step=1) for at, size in enumerate(outputs or ())]
        blocks: list[Block | str] = [text, *used] if role == "assistant" else [text]
        found.append(message(place + 1, *blocks, role="assistant" if role == "assistant" else "user"))
    return [*found, message(99, "question")]


def _steps(drawn: list[tuple[str, list[int]]]) -> list[RunStep]:
    step, found = 0, []
    for place, (text, outputs) in enumerate(drawn):
        calls = [call(f"r{place}c{at}", "o" * size, n=at) for at, size in enumerate(outputs)]
        step += bool(calls)
        found.append(RunStep(text=text, step=step if calls else 0, calls=calls))
    return found


@given(histories, progresses, letters, st.integers(50, 3000), st.lists(st.integers(0, 500), max_size=4), st.booleans())
def test_a_prompt_is_never_over_its_limit_and_pairs_stay_together(
    drawn: list[tuple[str, list[int] | None, str]],
    done: list[tuple[str, list[int]]],
    said: str,
    limit: int,
    tools: list[int],
    last: bool,
) -> None:
    history, rounds = _history(drawn), _steps(done)
    offered = [spec(f"tool{place}", size) for place, size in enumerate(tools)]
    try:
        found = fitted(
            history, limit=limit, rounds=rounds, said=said, tools=offered, instruction="stop" if last else ""
        )
    except ModelFailed:
        return
    assert cost(found) <= limit
    assert_paired(found.prompt.turns)
    assert "question" in texts(found)
    assert list(found.dropped) == history[: len(found.dropped)]
    kept = [use.id for turn in found.prompt.turns for use in turn.uses if use.id.startswith("r")]
    every = [call.id for round_ in rounds for call in round_.calls]
    assert kept == every[len(every) - len(kept) :]
    if rounds and rounds[-1].calls:
        assert kept[-1] == rounds[-1].calls[-1].id
    if last:
        assert texts(found)[-1] == "stop"
    if not found.dropped and not found.tight:
        assert len(kept) == len(every)


def test_the_newest_messages_are_kept_without_gaps() -> None:
    history = [message(number, f"{number}" * 100) for number in range(1, 6)] + [message(9, "question")]
    found = fitted(history, limit=6 + 8 + 350)
    assert texts(found) == ["3" * 100, "4" * 100, "5" * 100, "question"]
    assert [dropped.id.int for dropped in found.dropped] == [1, 2]
    history[3] = message(4, "4" * 300)
    assert texts(fitted(history, limit=6 + 8 + 350)) == ["5" * 100, "question"]


def test_a_question_that_is_too_long_is_reported() -> None:
    with pytest.raises(ModelFailed) as failed:
        fitted([message(1, "x" * 200)], limit=100)
    assert failed.value.code == "context_exceeded"


def test_a_step_has_its_outcomes_in_the_order_of_its_calls() -> None:
    rounds = [RunStep(text="look", step=1, calls=[call("a", "one", n=1), call("b", {"x": 1}, n=2), call("c", None)])]
    turns = fitted([message(1, "question")], rounds=rounds).prompt.turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert [use.args for use in turns[1].uses] == [{"n": 1}, {"n": 2}, {}]
    assert [outcome.text for outcome in turns[2].outcomes] == ["one", '{"x":1}', "s"]


def test_a_reply_that_is_not_an_answer_is_followed_by_a_request_to_continue() -> None:
    found = fitted([message(1, "question")], rounds=[RunStep(text="Shall I?")])
    assert texts(found) == ["question", "Shall I?", CONTINUE_PROMPT]


def test_outcomes_of_older_steps_are_shortened_before_those_of_the_newest() -> None:
    rounds = [RunStep(step=step, calls=[call(f"c{step}", f"{step}" * 1000)]) for step in range(1, 6)]
    found = fitted([message(1, "question")], rounds=rounds, limit=3500)
    outcomes = [turn.outcomes[0].text for turn in found.prompt.turns if turn.outcomes]
    assert [len(text) == 1000 for text in outcomes] == [False] * 3 + [True] * KEPT_STEPS
    assert all(
        text.startswith(f"{step}" * MAX_SHORT_CHARACTERS) and "800 characters" in text
        for step, text in enumerate(outcomes[:3], 1)
    )
    assert found.tight


def test_a_step_of_many_calls_is_shortened_to_fit() -> None:
    rounds = [RunStep(step=1, calls=[call(f"c{n}", "x" * 3000) for n in range(40)])]
    found = fitted([message(1, "question")], rounds=rounds, limit=20_000)
    assert len(found.prompt.turns[-1].outcomes) == 40
    assert cost(found) <= 20_000
    assert found.tight


def test_the_oldest_steps_are_left_out_if_shortening_is_not_enough() -> None:
    rounds = [RunStep(text="t" * 400, step=step, calls=[call(f"c{step}", "x" * 1000)]) for step in range(1, 9)]
    found = fitted([message(1, "question")], rounds=rounds, limit=2000)
    kept = [turn.uses[0].id for turn in found.prompt.turns if turn.uses]
    assert kept == [f"c{step}" for step in range(9 - len(kept), 9)]
    assert 1 <= len(kept) < 8


def test_a_summary_of_this_answer_replaces_older_messages_and_steps() -> None:
    history = [message(number, f"old{number}") for number in range(1, 4)] + [message(9, "question")]
    rounds = [RunStep(step=step, calls=[call(f"c{step}")]) for step in range(1, 5)]
    made = Compaction(summary="in short", message_id=UUID(int=2), step=3)
    found = fitted(history, rounds=[RunStep(text="Shall I?"), *rounds, RunStep(text="I will.")], compaction=made)
    assert texts(found) == [SUMMARY_HEADING + "in short", "old3", "question", "", "", "I will.", CONTINUE_PROMPT]
    assert [turn.uses[0].id for turn in found.prompt.turns if turn.uses] == ["c4"]


def test_the_newest_summary_in_an_earlier_answer_replaces_everything_before_it() -> None:
    first = CompactionBlock(summary="first", message_id=UUID(int=1))
    second = CompactionBlock(summary="second", message_id=UUID(int=3))
    own = CompactionBlock(summary="only of its rounds", step=2)
    history = [
        message(1, "one"), message(2, first, "two", role="assistant"), message(3, "three"),
        message(4, second, own, "four", role="assistant"), message(5, "question"),
    ]  # fmt: skip
    assert texts(fitted(history)) == [SUMMARY_HEADING + "second", "four", "question"]
    newer = Compaction(summary="third", message_id=UUID(int=4))
    assert texts(fitted(history, compaction=newer)) == [SUMMARY_HEADING + "third", "question"]


def test_earlier_answers_have_their_tools_in_short_and_without_secrets() -> None:
    answer = message(
        2, "Let me see.", block(1, "y" * 5000, step=1, args={"q": "z" * 5000}), block(2, "password=hunter2", step=1),
        block(3, None, step=2, state="cancelled"), "Done.", role="assistant",
    )  # fmt: skip
    turns = fitted([message(1, "one"), answer, message(3, "question")]).prompt.turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert_paired(turns)
    assert len(turns[2].outcomes[0].text) < 1100
    assert len(turns[1].uses[0].args["q"]) < 1100
    assert turns[2].outcomes[1].text == "password=[redacted]"
    assert (turns[4].outcomes[0].text, turns[4].outcomes[0].ok) == ("cancelled", False)


def test_the_arguments_of_earlier_calls_have_no_secrets() -> None:
    args = {"headers": ["Authorization: Bearer abcdefghijklmnop"], "body": {"text": "password=hunter2", "n": 1}}
    answer = message(2, block(1, "sent", step=1, args=args), role="assistant")
    turns = fitted([message(1, "one"), answer, message(3, "question")]).prompt.turns
    assert turns[1].uses[0].args == {
        "headers": ["Authorization: Bearer [redacted]"],
        "body": {"text": "password=[redacted]", "n": 1},
    }


def test_an_output_in_a_blob_is_shown_by_its_preview_and_blob_id() -> None:
    ref = blob(7, size=123_456, preview="begin")
    assert output_text(None, ref, "s", max_characters=100).startswith(
        "begin\n\n[The whole output (123,456 bytes, text/plain) is the blob"
    )
    assert str(ref.blob_id) in output_text(None, ref, "s", max_characters=100)
    assert output_text(None, blob(7, preview="p" * 500), "s", max_characters=100).startswith(
        "p" * 100 + "\n[… 400 characters left out]"
    )


def test_loaded_files_are_included_and_others_are_mentioned() -> None:
    given, missing = blob(1), blob(2, media_type="image/png", size=1_234_567)
    question = message(1, "look", FileBlock(blob=given), FileBlock(blob=missing))
    (turn,) = fitted([question], files={given.blob_id: b"data"}).prompt.turns
    assert [(file.name, file.media_type, file.data) for file in turn.files] == [("f1", "text/plain", b"data")]
    assert turn.text == f"look\n[Attached: f2, image/png, 1,234,567 bytes; blob {missing.blob_id}]"


def test_a_message_that_is_only_a_file_is_included() -> None:
    (turn,) = fitted([message(1, FileBlock(blob=blob(1)))], files={UUID(int=1): b"data"}).prompt.turns
    assert (turn.text, len(turn.files)) == ("", 1)


def test_files_cost_tokens_and_those_of_the_question_are_mentioned_if_they_do_not_fit() -> None:
    picture = blob(1, media_type="image/png")
    question = message(1, "look", FileBlock(blob=picture))
    data = {picture.blob_id: b"\x89PNG\r\n\x1a\n"}
    (turn,) = fitted([question], files=data, limit=IMAGE_TOKENS).prompt.turns
    assert not turn.files
    assert str(picture.blob_id) in turn.text
    # A file is counted beside its mention, though it replaces the mention.
    enough = len("system" + turn.text) + IMAGE_TOKENS + len("f1")
    assert fitted([question], files=data, limit=enough).prompt.turns[0].files
    assert not fitted([question], files=data, limit=enough - 1).prompt.turns[0].files


def test_a_long_text_file_is_shortened_with_a_reference_or_only_mentioned() -> None:
    text = blob(2)
    history, data = [message(1, "look", FileBlock(blob=text))], {text.blob_id: b"x" * 50_000}
    (turn,) = fitted(history, files=data, limit=60_000).prompt.turns
    assert turn.files[0].data == b"x" * 50_000
    (turn,) = fitted(history, files=data, limit=10_000).prompt.turns
    assert turn.files[0].data.startswith(b"x" * 4000 + b"\n[\xe2\x80\xa6 46,000 characters left out]")
    assert str(text.blob_id).encode() in turn.files[0].data
    (turn,) = fitted(history, files=data, limit=4000).prompt.turns
    assert not turn.files
    assert str(text.blob_id) in turn.text


def test_a_file_of_an_older_message_is_mentioned_if_only_its_message_fits() -> None:
    picture = blob(1, media_type="image/png")
    history = [message(1, "look", FileBlock(blob=picture)), message(2, "question")]
    data = {picture.blob_id: b"\x89PNG"}
    assert fitted(history, files=data, limit=IMAGE_TOKENS + 200).prompt.turns[0].files
    mentioned = fitted(history, files=data, limit=IMAGE_TOKENS)
    assert not mentioned.dropped
    assert not mentioned.prompt.turns[0].files
    assert str(picture.blob_id) in mentioned.prompt.turns[0].text
    assert fitted(history, files=data, limit=len("systemquestion") + 20).dropped


def test_only_the_first_tools_are_offered_if_they_exceed_their_share() -> None:
    tools = [spec(f"tool{number}", 300) for number in range(10)]
    found = fitted([message(1, "question")], tools=tools, limit=1000)
    assert 0 < len(found.prompt.tools) < 10
    assert list(found.prompt.tools) == tools[: len(found.prompt.tools)]
    assert sum(map(estimate_tool, found.prompt.tools)) <= 400
    assert sum(map(estimate_tool, tools[: len(found.prompt.tools) + 1])) > 400
    everything = fitted([message(1, "question")], tools=tools, limit=1000, reads_tools=False)
    assert list(everything.prompt.tools) == tools


def test_text_of_an_interrupted_answer_is_included_and_counted() -> None:
    history = [message(1, "old" * 20), message(2, "question")]
    assert fitted(history, said="s" * 50, limit=6 + 8 + 60 + 50).prompt.partial_answer == "s" * 50
    assert fitted(history, said="s" * 51, limit=6 + 8 + 60 + 50).dropped


def test_instructions_of_a_run_come_after_the_operators_and_before_the_threads() -> None:
    history = [message(1, "Rhyme.", role="system"), message(2, "Hello?")]
    system, instruction = system_prompt("Be brief.", history, requested="Speak French.")
    assert (system, instruction) == ("Be brief.\n\nSpeak French.\n\nRhyme.", history[1:])
    assert system_prompt("", history[1:]) == ("", history[1:])


def test_instructions_reduce_the_history_and_not_the_question() -> None:
    history = [message(1, "a" * 50), message(2, "b" * 50, role="assistant"), message(3, "c" * 50)]
    content = PromptInput(history=history, progress=RunProgress())
    dropped = {
        size: [
            message_.id.int
            for message_ in fit(content, system="s" * size, limit=150, token_counter=TOKEN_COUNTER).dropped
        ]
        for size in (0, 1, 51, 100)
    }
    assert dropped == {0: [], 1: [1], 51: [1, 2], 100: [1, 2]}
    with pytest.raises(ModelFailed, match="longer than the model"):
        fit(content, system="s" * 101, limit=150, token_counter=TOKEN_COUNTER)


def folder_file(number: int, data: bytes, media_type: str = "text/plain") -> StoredFolderFile:
    return StoredFolderFile(
        id=UUID(int=number), sha256=bytes(32), size=len(data), media_type=media_type, name=f"f{number}",
        user_id=UUID(int=1), folder="Trips", created_at=NOW,
    )  # fmt: skip


def read_blob(source: str = "builtin") -> ToolOffer:
    return ToolOffer(specs=[ToolSpec(name="read_blob", description="", parameters={}, source=source)])


def test_only_a_run_with_read_blob_is_told_of_it() -> None:
    folder = FolderContents(files=[folder_file(4, b"x" * 1000)])
    content = PromptInput(history=[message(9, "When?")], progress=RunProgress(), folder_files=folder)
    for offer, is_told in ((ToolOffer(), False), (read_blob(), True), (read_blob("caller"), False)):
        found = fit(content, system="", limit=4000, token_counter=TOKEN_COUNTER, tools=offer)
        (turn, _) = found.prompt.turns
        assert '"f4"' in turn.text
        assert ("read_blob" in turn.text, str(UUID(int=4)) in turn.text) == (is_told, is_told)


@pytest.mark.parametrize("limit", range(300, 4200, 300))
def test_files_of_a_folder_are_whole_if_they_fit_and_named_otherwise_within_the_limit(limit: int) -> None:
    contents = {number: bytes([64 + number]) * 200 for number in (1, 2, 3)}
    large = folder_file(4, b"x" * 1000)
    files = [*(folder_file(number, data) for number, data in contents.items()), large]
    folder = FolderContents(files=files, contents={UUID(int=number): data for number, data in contents.items()})
    content = PromptInput(history=[message(9, "When?")], progress=RunProgress(), folder_files=folder)
    found = fit(content, system="", limit=limit, token_counter=TOKEN_COUNTER)
    assert cost(found) <= limit
    (section,) = [section for section in found.sections if section.name == "folderFiles"]
    assert section.tokens <= 0.3 * limit
    if not section.items:
        return
    (turn,) = found.prompt.turns[:-1]
    whole = [file.name for file in turn.files]
    assert whole == [f"f{number}" for number in range(1, len(whole) + 1)], "the smallest first, and each only once"
    assert turn.text.count(": included") == len(whole)
    assert all(f'"f{number}"' in turn.text for number in range(1, section.items + 1))
    assert [left.why for left in section.left_out][:1] == ["unread"]
    assert limit < 3900 or len(whole) == 3
