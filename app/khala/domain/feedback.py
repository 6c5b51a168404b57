"""Feedback of people on answers."""

from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

from khala.domain.chat import WireStruct

FeedbackRating: TypeAlias = Literal["up", "down"]

MAX_REASON_CHARACTERS = 2_000


class Feedback(WireStruct, frozen=True, kw_only=True):
    """One person's feedback on one answer."""

    message_id: UUID
    thread_id: UUID
    rating: FeedbackRating
    reason: str | None = None
    created_at: datetime
    updated_at: datetime


class EvaluatedAnswer(WireStruct, frozen=True, kw_only=True):
    """Feedback for an evaluation: with what wrote the answer, and with the texts, if they were requested."""

    message_id: UUID
    thread_id: UUID
    person_id: UUID
    rating: FeedbackRating
    reason: str | None = None
    run_id: UUID | None = None
    model: str | None = None
    provider: str | None = None
    agent: str | None = None
    question: str | None = None
    answer: str | None = None
    created_at: datetime
    updated_at: datetime
