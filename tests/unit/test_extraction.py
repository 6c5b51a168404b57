"""Extraction of memories: what is read of a message, and which of a model's answers are used."""

import json
import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from khala.domain import extraction
from khala.domain.extraction import ExtractedMemory, SpokenMessage, UnusableAnswerError
from khala.domain.memories import Memory, NewMemory

SAID = [SpokenMessage(id=uuid4(), position=number, text="I moved to Shakuras.") for number in range(2)]
HOME = Memory(id=uuid4(), scope="user", kind="fact", text="Lives in Aiur", created_at=datetime.now(UTC), uses=0)
DEEP = f'{{"memories": [{"[" * 5_000}{"]" * 5_000}]}}'
SOURCE = NewMemory(text="", thread_id=uuid4(), run_id=uuid4())


def entry(**changes: Any) -> dict[str, Any]:
    return {"text": "Lives in Shakuras", "message": 1, "worth": 0.9} | changes


def read(*entries: Any) -> list[ExtractedMemory]:
    return extraction.read_answer(json.dumps({"memories": entries}), SAID, [HOME], SOURCE)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("I live in Aiur.", "I live in Aiur."),
        ("Read this:\n> The password is x\n> and y\nI like tea.", "Read this:\n[quotation left out]\nI like tea."),
        ("```\nThe admin is Zeratul\n```\nI like tea.", "[quotation left out]\nI like tea."),
        ("I like tea.\n~~~~text\nnever closed\n```\n", "I like tea.\n[quotation left out]"),
        ("> only quoted", ""),
        ("```\nonly code\n```", ""),
        ("5 > 4, and I know it", "5 > 4, and I know it"),
    ],
)
def test_quotations_and_code_are_left_out(text: str, left: str) -> None:
    assert extraction.spoken(text) == left


def test_a_long_fence_without_end_takes_linear_time() -> None:
    took = []
    for characters in (10_000, 100_000):
        began = time.process_time()
        extraction.spoken("`" * characters)
        took.append(time.process_time() - began)
    assert took[1] < 30 * max(took[0], 0.001), "quadratic time is 100 times as long"


def test_a_long_message_is_cut_and_messages_that_do_not_fit_wait() -> None:
    long = [SpokenMessage(id=uuid4(), position=number, text="x" * 9_000) for number in range(9)]
    chosen = extraction.fitting(long)
    assert [message.position for message in chosen] == [0, 1, 2, 3, 4, 5]
    assert {len(message.text) for message in chosen} == {4_000}
    assert len(extraction.fitting([SpokenMessage(id=uuid4(), position=0, text="x")] * 90)) == extraction.MAX_MESSAGES


def test_an_answer_gives_memories_with_their_message_and_what_they_correct() -> None:
    (found,) = read(entry(kind="fact", keywords="home, address", message=2, supersedes="m1"))
    assert found.supersedes == HOME.id
    assert (found.new.text, found.new.keywords) == ("Lives in Shakuras", "home, address")
    assert (found.new.message_id, found.new.thread_id, found.new.run_id) == (
        SAID[1].id,
        SOURCE.thread_id,
        SOURCE.run_id,
    )


def test_text_around_the_object_is_ignored() -> None:
    answer = f"Here it is:\n```json\n{json.dumps({'memories': [entry()]})}\n```"
    assert len(extraction.read_answer(answer, SAID, [], SOURCE)) == 1


@pytest.mark.parametrize(
    "unusable",
    [
        entry(worth=0.59),
        entry(worth=7),
        entry(text=""),
        entry(text="  "),
        entry(text="x" * 401),
        entry(text="two\nlines"),
        entry(text="a\0b"),
        entry(text="The password: hunter2hunter2"),
        entry(text="The key is sk-aaaaaaaaaaaaaaaaaaaaaaaa"),
        entry(keywords="password=hunter2hunter2"),
        entry(message=0),
        entry(message=3),
        entry(kind="summary"),
        entry(kind="rumour"),
        entry(text="LIVES in Aiur."),
        {"text": "no worth"},
        "text",
        None,
    ],
)
def test_a_candidate_without_worth_or_out_of_bounds_is_left_out_and_the_others_stay(unusable: Any) -> None:
    assert [found.new.text for found in read(unusable, entry())] == ["Lives in Shakuras"]


def test_an_id_that_was_not_shown_corrects_nothing() -> None:
    assert [found.supersedes for found in read(entry(supersedes=str(HOME.id)))] == [None]
    assert [found.supersedes for found in read(entry(supersedes="m2"))] == [None]


def test_repeated_and_too_many_memories_are_left_out() -> None:
    assert len(read(entry(), entry(text="lives in  Shakuras."))) == 1
    assert len(read(*(entry(text=f"Fact {number}") for number in range(30)))) == extraction.MAX_EXTRACTED


@pytest.mark.parametrize(
    "answer", ["", "I remember nothing.", "{}", '{"memories": 1}', '{"memories": [}', "}{", "[]", DEEP]
)
def test_an_answer_without_the_object_is_unusable(answer: str) -> None:
    with pytest.raises(UnusableAnswerError):
        extraction.read_answer(answer, SAID, [], SOURCE)


def test_the_model_is_shown_short_ids_and_a_bounded_number_of_known_memories() -> None:
    known = [HOME] * 50
    shown = json.loads(extraction.question(SAID, known))
    assert [memory["id"] for memory in shown["known"]] == [f"m{number}" for number in range(1, 21)]
    assert [message["message"] for message in shown["messages"]] == [1, 2]
