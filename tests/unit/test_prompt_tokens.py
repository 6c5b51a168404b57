"""The counting of prompts: by the model's vocabulary or on the safe side, and each item once."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from khala.domain.run_progress import RunProgress, RunStep
from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel, PromptTurn
from khala.models.token_counter import TokenCounter, estimate
from khala.runs.prompt import PromptInput, fit
from khala.runs.prompt_limits import PromptLimits, max_prompt_tokens
from khala.runs.prompt_tokens import SAFETY_FACTOR, TURN_TOKENS, ModelTokenCounter
from tests.bench.context import conversation
from tests.unit.test_prompt import call, spec


class Words:
    """A vocabulary in which each word is a token."""

    def encode_ordinary(self, text: str) -> list[int]:
        return [0] * len(text.split())


class CountingCounter(ModelTokenCounter):
    """Records how many turns it counts."""

    def __init__(self) -> None:
        super().__init__(TokenCounter(), "none")
        self.counted = 0

    def turns(self, turns: Sequence[PromptTurn]) -> int:
        self.counted += len(turns)
        return super().turns(turns)


def model(name: str) -> LanguageModel:
    """A model that is not called."""
    named: Any = SimpleNamespace(name=name, provider="openai", reads_tools=True)
    return cast("LanguageModel", named)


async def test_a_known_vocabulary_counts_exactly_and_an_unknown_one_on_the_safe_side() -> None:
    tokens = TokenCounter(lambda _: Words())
    assert await tokens.load("gpt-4o")
    exact, estimated = ModelTokenCounter(tokens, "gpt-4o"), ModelTokenCounter(tokens, "claude-opus")
    text = "one two three four"
    assert (exact.estimates, estimated.estimates) == (False, True)
    assert exact.text(text) == 4 + TURN_TOKENS
    assert estimated.text(text) >= estimate(text) * SAFETY_FACTOR + TURN_TOKENS
    assert exact.tool(spec("tool", 100)) != estimated.tool(spec("tool", 100))
    assert exact.text("") == estimated.text("") == 0


async def test_a_vocabulary_that_arrives_during_a_run_is_used_from_then_on() -> None:
    loads = iter([OSError("no network"), None])

    def load(_: str) -> Words:
        problem = next(loads)
        if problem is not None:
            raise problem
        return Words()

    limits = PromptLimits(TokenCounter(load, retry_interval=0), context_tokens=1000)
    before, after = await limits.of_model(model("gpt-4o")), await limits.of_model(model("gpt-4o"))
    assert (before.counter.estimates, after.counter.estimates) == (True, False)
    assert (await limits.of_model(model("gpt-4o"))).counter is after.counter


@pytest.mark.parametrize(
    ("name", "requested", "output", "most", "expected"),
    [
        ("unknown", None, None, None, 100_000),
        ("unknown", 700, None, None, 700),
        ("unknown", 200_000, None, None, 100_000),
        ("unknown", 700, None, 300, 300),
        ("gpt-4", None, None, None, 6144),
        ("gpt-4", None, 1000, None, 7192),
        ("gpt-4", None, 1_000_000, None, 4096),
        ("gpt-4", 900, 1000, None, 900),
    ],
)
async def test_the_limit_is_the_lowest_of_the_operators_the_runs_and_the_models(
    name: str, requested: int | None, output: int | None, most: int | None, expected: int
) -> None:
    limits = PromptLimits(
        TokenCounter(lambda _: Words()), context_tokens=100_000, requested=requested, output_tokens=output
    )
    assert (await limits.of_model(model(name), most)).tokens == expected


@pytest.mark.parametrize(
    ("name", "operators", "shortens", "expected", "read"),
    [
        ("gpt-4o", None, False, 96_000, 128_000),
        ("gpt-4o", None, True, 32_000, 32_000),
        ("gpt-4o", 20_000, False, 20_000, 20_000),
        ("unknown", None, False, 32_000, 32_000),
        ("gpt-4", None, False, 6144, 32_000),
    ],
)
async def test_without_a_limit_of_the_operator_a_whole_conversation_may_fill_the_window(
    name: str, operators: int | None, shortens: bool, expected: int, read: int
) -> None:
    limits = PromptLimits(TokenCounter(lambda _: Words()), context_tokens=operators, shortens=shortens)
    assert (await limits.of_model(model(name))).tokens == expected
    assert max_prompt_tokens(operators, [ModelRef("openai", name)], shortens=shortens) == read


def test_turns_that_cannot_fit_are_not_counted_and_others_once_in_a_run() -> None:
    counter = CountingCounter()
    progress = RunProgress()
    content = PromptInput(history=conversation(2000, 600), progress=progress)

    def build() -> int:
        counter.counted = 0
        found = fit(content, system="Be brief.", limit=8000, token_counter=counter)
        assert sum(section.tokens for section in found.sections) <= 8000
        assert len(found.dropped) > 1900
        return counter.counted

    # Each message in its two forms, and one that does not fit.
    assert 60 < build() < 120
    assert build() == 0
    progress.steps.append(RunStep(text="look", step=1, calls=[call("c1", "x" * 4000)]))
    assert build() == 6, "the forms of the new step"
