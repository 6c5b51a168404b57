"""The next step of the demo model's plan, computed from the conversation alone. Pure."""

import re
from collections.abc import Sequence

import msgspec

from khala.models.demo import directives as demo_directives
from khala.models.demo import script as demo_script
from khala.models.demo.directives import Directives
from khala.models.demo.examples import example_arguments, example_text
from khala.models.demo.plan_roles import directives_for
from khala.models.demo.script import Script, shorten, split
from khala.models.port import SUMMARISE, Prompt, PromptTurn, ToolOutcome, ToolUse

MAX_LISTED_OUTCOMES = 20
"""Outcomes in an answer's list."""

_SUMMARY = re.compile(r"Summary of [0-9]+ messages?\. Rounds of tools so far: ([0-9]{1,6})\.")
_CALL = re.compile(r"[^\s{]+\{.*\}")
"""A tool call as the prompt of a summary shows it, on the last line of a turn."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a question's plan: its finished steps, replies without tools, and the last step's outcomes."""

    question: PromptTurn
    directives: Directives
    steps: int = 0
    replies: int = 0
    outcomes: tuple[ToolOutcome, ...] = ()

    @property
    def opening(self) -> str | None:
        """The text before the first step, if there is one."""
        pending = not self.steps and self.replies < len(self.directives.openings)
        return self.directives.openings[self.replies] if pending else None

    @property
    def has_next_step(self) -> bool:
        """Whether a step is due."""
        return bool(self.directives.steps) and (self.directives.loop or self.steps < len(self.directives.steps))

    @property
    def is_answered(self) -> bool:
        """Whether the answer has been sent."""
        return self.replies > len(self.directives.openings)


def direct(prompt: Prompt) -> tuple[str, Script]:
    """The message to answer, and the script of this call."""
    question = _last_user(prompt.turns)
    if SUMMARISE in question.text:
        return question.text, _summary(prompt)
    progress = _progress(prompt) or _role(question, prompt)
    if progress is None or progress.directives.empty:
        return question.text, _required_call(prompt) if prompt.requires_tool else _write(question, prompt)
    return progress.question.text, _continue(progress, prompt)


def _required_call(prompt: Prompt) -> Script:
    """A call of the first tool, with an example of its arguments."""
    tool = prompt.tools[0]
    return Script(tokens=(), uses=(ToolUse(id="demo-1-1", name=tool.name, args=example_arguments(tool.parameters)),))


def _continue(progress: Progress, prompt: Prompt) -> Script:
    directives = progress.directives
    if progress.has_next_step and not prompt.tools:
        count = f"{progress.steps} round{'' if progress.steps == 1 else 's'}"
        return _answer(progress, prompt, before=f"Stopped after {count}.\n\n")
    if progress.opening is not None:
        return demo_script.script_of(
            tuple(split(progress.opening)),
            directives.rest,
            partial_answer=prompt.partial_answer,
            limit=prompt.max_output_tokens,
        )
    return _step(progress, prompt) if progress.has_next_step else _answer(progress, prompt)


def _step(progress: Progress, prompt: Prompt) -> Script:
    directives, number = progress.directives, progress.steps + 1
    text = directives.steps[min(number, len(directives.steps)) - 1].text
    script = _script(text, directives.rest, prompt)
    last = len(script.tokens)
    return msgspec.structs.replace(
        script,
        uses=() if script.finish == "length" else tuple(demo_directives.calls(directives, number)),
        wait=directives.wait,
        fail_after=last if directives.fail_step == number else None,
        failures=directives.failures,
        hang_after=last if directives.hang_step == number else None,
    )


def _answer(progress: Progress, prompt: Prompt, before: str = "") -> Script:
    directives = progress.directives
    requested = prompt.generation.json_format
    if requested is not None:
        whole = example_text(requested) if directives.answer is None else directives.answer
    else:
        text = directives.answer if directives.answer is not None else _report(progress.outcomes)
        whole = before + text + demo_script.list_files(progress.question.files)
    return demo_script.write(
        directives.rest, partial_answer=prompt.partial_answer, limit=prompt.max_output_tokens, otherwise=whole
    )


def _report(outcomes: Sequence[ToolOutcome]) -> str:
    """The results of the last tool calls, one line each."""
    if not outcomes:
        return "No tool has answered."
    lines = [
        f"- `{shorten(outcome.name, 80)}`: {'ok' if outcome.ok else 'failed'}: {shorten(outcome.text)}"
        for outcome in outcomes
    ]
    further = [f"- and {len(lines) - MAX_LISTED_OUTCOMES} more"] if len(lines) > MAX_LISTED_OUTCOMES else []
    return "\n".join(("The tools returned:", "", *lines[:MAX_LISTED_OUTCOMES], *further))


def _write(question: PromptTurn, prompt: Prompt) -> Script:
    requested = prompt.generation.json_format
    return demo_script.write(
        question.text,
        partial_answer=prompt.partial_answer,
        limit=prompt.max_output_tokens,
        otherwise=None if requested is None else example_text(requested),
        files=question.files,
    )


def _summary(prompt: Prompt) -> Script:
    before = prompt.turns[: _last_user_index(prompt.turns)]
    count = f"Summary of {len(before)} message{'' if len(before) == 1 else 's'}."
    text = f"{count} Rounds of tools so far: {_steps_since_answer(prompt, before)}."
    return _script(f"{text} The last words were: {shorten(_last_words(before))}", "/pace=0", prompt)


def _steps_since_answer(prompt: Prompt, before: Sequence[PromptTurn]) -> int:
    """The steps at the end of these turns, since the last answer."""
    count = 0
    for turn in reversed(before):
        if (match := _SUMMARY.search(turn.text)) is not None:
            return count + int(match[1])
        if turn.role != "assistant":
            continue
        if not turn.uses and not _CALL.fullmatch(turn.text.rpartition("\n")[2]):
            return count
        count += 1
    return count + _summarised(prompt.system)


def _last_words(turns: Sequence[PromptTurn]) -> str:
    return next((turn.text for turn in reversed(turns) if turn.text and turn.role != "system"), "")


def _script(text: str, message: str, prompt: Prompt) -> Script:
    return demo_script.script_of(
        tuple(split(text)), message, partial_answer=prompt.partial_answer, limit=prompt.max_output_tokens
    )


def _progress(prompt: Prompt) -> Progress | None:
    """The progress of the last question's plan.

    A user's turn without a directive continues a plan that has begun and has not ended. So a user's "go on" continues a
    plan whose model only asked or announced.
    """
    turns = prompt.turns
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        if turn.role != "user":
            continue
        directives = demo_directives.parse(turn.text)
        if directives.empty and not demo_script.has_directive(turn.text):
            continue
        progress = _since(turn, directives, prompt, index)
        is_last = all(later.role != "user" for later in turns[index + 1 :])
        return progress if is_last or _is_in_progress(progress) else None
    return None


def _role(question: PromptTurn, prompt: Prompt) -> Progress | None:
    """The progress of the demo model's role in a plan, if the last question has no directive and gives it one."""
    if demo_script.has_directive(question.text) or (text := directives_for(question.text, prompt)) is None:
        return None
    progress = _since(question, demo_directives.parse(text), prompt, _last_user_index(prompt.turns))
    if all(outcome.ok for outcome in progress.outcomes):
        return progress
    return msgspec.structs.replace(progress, directives=msgspec.structs.replace(progress.directives, answer=None))


def _is_in_progress(progress: Progress) -> bool:
    return bool(progress.steps or progress.replies) and not progress.is_answered


def _since(question: PromptTurn, directives: Directives, prompt: Prompt, index: int) -> Progress:
    """The progress of a plan since the turn at this index."""
    later = [turn for turn in prompt.turns[index + 1 :] if turn.role in ("assistant", "tool")]
    texts = (turn.text for turn in reversed(prompt.turns) if turn.role in ("system", "user"))
    summary = next(filter(_SUMMARY.search, texts), prompt.system)
    return Progress(
        question=question,
        directives=directives,
        steps=_summarised(summary) + sum(bool(turn.uses) for turn in later),
        replies=sum(turn.role == "assistant" and not turn.uses for turn in later),
        outcomes=next((turn.outcomes for turn in reversed(later) if turn.role == "tool"), ()),
    )


def _summarised(text: str) -> int:
    """The steps that a summary counts; 0 if the text is not a summary."""
    match = _SUMMARY.search(text)
    return int(match[1]) if match else 0


def _last_user_index(turns: Sequence[PromptTurn]) -> int:
    """The index of the last user's turn; the number of turns if there is none."""
    return next((index for index in range(len(turns) - 1, -1, -1) if turns[index].role == "user"), len(turns))


def _last_user(turns: Sequence[PromptTurn]) -> PromptTurn:
    index = _last_user_index(turns)
    return turns[index] if index < len(turns) else PromptTurn(role="user")
