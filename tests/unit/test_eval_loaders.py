"""The loaders of LongMemEval and LoCoMo, on small files of these formats, and on other files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.eval.loading import BenchmarkFileError
from tests.eval.locomo import load_locomo
from tests.eval.long_mem_eval import load_long_mem_eval


def instance(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "question_id": name,
        "question_type": "single-session-user",
        "question": "Which degree did I graduate with?",
        "answer": "Business Administration",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 03:57"],
        "haystack_session_ids": ["sharegpt_1", "answer_2"],
        "haystack_sessions": [
            [{"role": "user", "content": "Plan a trip."}, {"role": "assistant", "content": "Where to?"}],
            [
                {"role": "user", "content": "I need help with my taxes.", "has_answer": False},
                {"role": "assistant", "content": "Of course."},
                {"role": "user", "content": "I have a degree in business administration.", "has_answer": True},
                {"role": "user", "content": " "},
            ],
        ],
        "answer_session_ids": ["answer_2"],
    } | changes


def sample(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "sample_id": name,
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "I went to a concert yesterday."},
                {
                    "speaker": "Ben",
                    "dia_id": "D1:2",
                    "text": "Look!",
                    "img_url": ["https://example.org/1.jpg"],
                    "blip_caption": "a photo of a dog",
                    "query": "dog",
                },
            ],
            "session_2_date_time": "10:04 am on 1 June, 2023",
            "session_2": [{"speaker": "Ada", "dia_id": "D2:1", "text": "I moved to Bern."}],
            "session_3_date_time": "9:00 am on 2 June, 2023",
        },
        "qa": [
            {"question": "When was the concert?", "answer": "7 May 2023", "evidence": ["D1:1"], "category": 2},
            {"question": "Who has a dog?", "answer": 1, "evidence": ["D1:2; D:2:01"], "category": 1},
            {"question": "Where is D9?", "answer": "nowhere", "evidence": ["D9:4", "D"], "category": 4},
            {"question": "Why?", "answer": "no evidence", "evidence": [], "category": 3},
            {"question": "When did Ben move?", "adversarial_answer": "June", "evidence": ["D2:1"], "category": 5},
        ],
        "event_summary": {},
        "observation": {},
        "session_summary": {},
    } | changes


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_long_mem_eval_by_session_has_what_the_user_says(tmp_path: Path) -> None:
    instances = [instance("q1"), instance("q2_abs"), instance("q3", question_type="knowledge-update")]
    loaded = load_long_mem_eval(written(tmp_path / "longmemeval_s.json", instances))
    assert loaded.title == "LongMemEval (longmemeval_s.json, by session)"
    assert loaded.skipped == 0
    first, absent, update = loaded.collections
    assert [(one.id, one.text, one.at) for one in first.memories] == [
        ("sharegpt_1", "Plan a trip.", "2023-05-20T02:21"),
        ("answer_2", "I need help with my taxes.\nI have a degree in business administration.", "2023-05-21T03:57"),
    ]
    assert [(one.kind, one.expected) for one in first.questions] == [("single-session-user", ("answer_2",))]
    assert [(one.kind, one.expected) for one in absent.questions] == [("absent", ())]
    assert [one.kind for one in update.questions] == ["knowledge-update"]
    assert [one.half for one in loaded.collections] == ["tune", "report", "tune"]


def test_long_mem_eval_by_turn_expects_the_turns_with_evidence(tmp_path: Path) -> None:
    by_assistant = instance("q2", haystack_sessions=[[], [{"role": "assistant", "content": "B", "has_answer": True}]])
    path = written(tmp_path / "oracle.json", [instance("q1"), by_assistant, instance("q3")])
    loaded = load_long_mem_eval(path, granularity="turn")
    assert [one.id for one in loaded.collections[0].memories] == ["sharegpt_1:1", "answer_2:1", "answer_2:3"]
    assert loaded.collections[0].questions[0].expected == ("answer_2:3",)
    assert [one.name for one in loaded.collections] == ["q1", "q3"]
    assert loaded.skipped == 1
    assert len(load_long_mem_eval(path, limit=1).collections) == 1


def test_locomo_has_a_memory_for_each_turn_and_reads_odd_evidence(tmp_path: Path) -> None:
    loaded = load_locomo(written(tmp_path / "locomo10.json", [sample("conv-1"), sample("conv-2")]))
    assert loaded.title == "LoCoMo (locomo10.json)"
    assert loaded.skipped == 4
    first, second = loaded.collections
    assert [(one.id, one.text, one.at) for one in first.memories] == [
        ("D1:1", "Ada: I went to a concert yesterday.", "2023-05-08T13:56"),
        ("D1:2", "Ben: Look! [shows a photo of a dog]", "2023-05-08T13:56"),
        ("D2:1", "Ada: I moved to Bern.", "2023-06-01T10:04"),
    ]
    assert [(one.id, one.kind, one.expected) for one in first.questions] == [
        ("conv-1/1", "temporal", ("D1:1",)),
        ("conv-1/2", "multi-hop", ("D1:2", "D2:1")),
        ("conv-1/5", "absent", ()),
    ]
    assert (first.half, second.half) == ("tune", "report")
    assert len(load_locomo(tmp_path / "locomo10.json", limit=1).collections) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no file of LongMemEval"),
        ([], "it has no questions"),
        ([sample("conv-1")], "is no file of LongMemEval: .*`question_id`"),
        ([instance("q1", haystack_dates=[])], "question q1: sessions, their ids and their dates differ in number"),
        ([instance("q1", haystack_dates=["yesterday"] * 2)], "question q1: 'yesterday' is no time"),
        ([instance("q1", answer_session_ids=["gone"])], "question q1: the haystack lacks the session gone"),
    ],
)
def test_another_file_than_long_mem_eval_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BenchmarkFileError, match=message):
        load_long_mem_eval(written(tmp_path / "file.json", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1", "is no file of LoCoMo"),
        ([], "it has no conversations"),
        ([instance("q1")], "is no file of LoCoMo: .*`sample_id`"),
        ([sample("conv-1", conversation={})], "conversation conv-1: it has no sessions"),
        ([sample("conv-1", conversation={"session_1": []})], "conv-1: session_1 has no time"),
        (
            [
                sample(
                    "c", conversation={"session_1": [{"speaker": "A"}], "session_1_date_time": "1:56 pm on 8 May, 2023"}
                )
            ],
            "conversation c: session_1: .*`dia_id`",
        ),
        ([sample("conv-1", qa=[{"question": "?", "category": 6}])], "question 1 is of the unknown category 6"),
    ],
)
def test_another_file_than_locomo_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BenchmarkFileError, match=message):
        load_locomo(written(tmp_path / "file.json", content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFileError, match=r"gone.json cannot be read: No such file"):
        load_locomo(tmp_path / "gone.json")
