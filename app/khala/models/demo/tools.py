"""The next step of the demo model's plan, computed from the conversation alone: the model keeps no state. Pure."""

import re
from collections.abc import Sequence

import msgspec

from khala.models.demo import plan as demo_plan
from khala.models.demo import script as demo_script
from khala.models.demo.plan import Plan
from khala.models.demo.script import Script, cut, short
from khala.models.port import SUMMARISE, Prompt, PromptTurn, ToolOutcome

LISTED = 20
"""Outcomes that an answer lists."""

_SUMMARY = re.compile(r"Summary of [0-9]+ messages?\. Rounds of tools so far: ([0-9]{1,6})\.")
_CALL = re.compile(r"[^\s{]+\{.*\}")
"""A call as a summary's prompt may tell it, the last line of a turn."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a question's plan is: rounds made, replies given without tools, and what the last round came to."""

    question: PromptTurn
    plan: Plan
    rounds: int = 0
    replies: int = 0
    outcomes: tuple[ToolOutcome, ...] = ()

    @property
    def opening(self) -> str | None:
        """The text before the first step, if there is one."""
        pending = not self.rounds and self.replies < len(self.plan.openings)
        return self.plan.openings[self.replies] if pending else None

    @property
    def more(self) -> bool:
        """Whether a round is due."""
        return bool(self.plan.rounds) and (self.plan.loop or self.rounds < len(self.plan.rounds))

    @property
    def answered(self) -> bool:
        """Whether all has been said that there was to say."""
        return self.replies > len(self.plan.openings)


def direct(prompt: Prompt) -> tuple[str, Script]:
    """The message that is answered, and the script of what the model does now."""
    asked = _last_user(prompt.turns)
    if SUMMARISE in asked.text:
        return asked.text, _summary(prompt)
    progress = _progress(prompt)
    if progress is None or progress.plan.empty:
        return asked.text, _write(asked, prompt)
    return progress.question.text, _go_on(progress, prompt)


def _go_on(progress: Progress, prompt: Prompt) -> Script:
    plan = progress.plan
    if progress.more and not prompt.tools:
        count = f"{progress.rounds} round{'' if progress.rounds == 1 else 's'}"
        return _answer(progress, prompt, before=f"Stopped after {count}.\n\n")
    if progress.opening is not None:
        return demo_script.speak(
            tuple(cut(progress.opening)), plan.rest, said=prompt.said, limit=prompt.max_output_tokens
        )
    return _round(progress, prompt) if progress.more else _answer(progress, prompt)


def _round(progress: Progress, prompt: Prompt) -> Script:
    plan, number = progress.plan, progress.rounds + 1
    text = plan.rounds[min(number, len(plan.rounds)) - 1].text
    script = _speak(text, plan.rest, prompt)
    last = len(script.tokens)
    return msgspec.structs.replace(
        script,
        uses=() if script.finish == "length" else tuple(demo_plan.calls(plan, number)),
        wait=plan.wait,
        fail_after=last if plan.fail_round == number else None,
        failures=plan.failures,
        hang_after=last if plan.hang_round == number else None,
    )


def _answer(progress: Progress, prompt: Prompt, before: str = "") -> Script:
    plan = progress.plan
    text = plan.answer if plan.answer is not None else _report(progress.outcomes)
    whole = before + text + demo_script.listed(progress.question.files)
    return demo_script.write(plan.rest, said=prompt.said, limit=prompt.max_output_tokens, otherwise=whole)


def _report(outcomes: Sequence[ToolOutcome]) -> str:
    """The results of the last tool calls, one line each."""
    if not outcomes:
        return "No tool has answered."
    lines = [f"- `{short(one.name, 80)}`: {'ok' if one.ok else 'failed'}: {short(one.text)}" for one in outcomes]
    further = [f"- and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join(("The tools have answered:", "", *lines[:LISTED], *further))


def _write(asked: PromptTurn, prompt: Prompt) -> Script:
    return demo_script.write(asked.text, said=prompt.said, limit=prompt.max_output_tokens, files=asked.files)


def _summary(prompt: Prompt) -> Script:
    before = prompt.turns[: _place(prompt.turns)]
    count = f"Summary of {len(before)} message{'' if len(before) == 1 else 's'}."
    text = f"{count} Rounds of tools so far: {_unanswered(prompt, before)}."
    return _speak(f"{text} The last words were: {short(_last_words(before))}", "/pace=0", prompt)


def _unanswered(prompt: Prompt, before: Sequence[PromptTurn]) -> int:
    """The rounds of tools at the end of these turns, since the last answer."""
    count = 0
    for turn in reversed(before):
        if (found := _SUMMARY.search(turn.text)) is not None:
            return count + int(found[1])
        if turn.role != "assistant":
            continue
        if not turn.uses and not _CALL.fullmatch(turn.text.rpartition("\n")[2]):
            return count
        count += 1
    return count + _summarised(prompt.system)


def _last_words(turns: Sequence[PromptTurn]) -> str:
    return next((turn.text for turn in reversed(turns) if turn.text and turn.role != "system"), "")


def _speak(text: str, message: str, prompt: Prompt) -> Script:
    return demo_script.speak(tuple(cut(text)), message, said=prompt.said, limit=prompt.max_output_tokens)


def _progress(prompt: Prompt) -> Progress | None:
    """How far the last question's plan is.

    A user's turn without any directive goes on with a plan that has begun and is not at its end: so a model is spurred
    on that only asked or announced.
    """
    turns = prompt.turns
    for place in range(len(turns) - 1, -1, -1):
        turn = turns[place]
        if turn.role != "user":
            continue
        plan = demo_plan.read(turn.text)
        if plan.empty and not demo_script.directed(turn.text):
            continue
        progress = _since(turn, plan, prompt, place)
        fresh = all(later.role != "user" for later in turns[place + 1 :])
        return progress if fresh or _begun(progress) else None
    return None


def _begun(progress: Progress) -> bool:
    return bool(progress.rounds or progress.replies) and not progress.answered


def _since(question: PromptTurn, plan: Plan, prompt: Prompt, place: int) -> Progress:
    """The progress of a plan since the turn at this place."""
    later = [turn for turn in prompt.turns[place + 1 :] if turn.role in ("assistant", "tool")]
    told = (turn.text for turn in reversed(prompt.turns) if turn.role in ("system", "user"))
    summary = next(filter(_SUMMARY.search, told), prompt.system)
    return Progress(
        question=question,
        plan=plan,
        rounds=_summarised(summary) + sum(bool(turn.uses) for turn in later),
        replies=sum(turn.role == "assistant" and not turn.uses for turn in later),
        outcomes=next((turn.outcomes for turn in reversed(later) if turn.role == "tool"), ()),
    )


def _summarised(text: str) -> int:
    """The rounds that a summary counts; none where the text is no summary."""
    found = _SUMMARY.search(text)
    return int(found[1]) if found else 0


def _place(turns: Sequence[PromptTurn]) -> int:
    """The index of the last user's turn; the number of turns if there is none."""
    return next((place for place in range(len(turns) - 1, -1, -1) if turns[place].role == "user"), len(turns))


def _last_user(turns: Sequence[PromptTurn]) -> PromptTurn:
    place = _place(turns)
    return turns[place] if place < len(turns) else PromptTurn(role="user")
