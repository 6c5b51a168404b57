"""The script of the demo model's answer: its text and timing, as a pure function of a message."""

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from khala.models.port import PromptFile, ToolUse
from khala.models.provider_registry import PROVIDERS

MAX_WORDS = 20_000
MAX_PACE = 10_000
"""Tokens a second."""
MAX_REFUSALS = 9
MAX_LISTED = 20
DEFAULT_PACE = 50.0
"""Tokens a second."""
TOKEN_CHARACTERS = 4

_DIRECTIVE = re.compile(r"/(?:(words|pace|fail|hang)=([0-9]{1,9})|(ratelimit)=([0-9]{1,9}(?:,[0-9])?)|(empty|help))")
_ECHO = re.compile(r"(?<!\S)/echo(?:\s|$)")
_WORD = re.compile(r"(?<!\S)\S+")

BASIC_HELP = """\
| Directive | What the demo model does |
| --- | --- |
| `/words=300` | answers with that many numbered words (at most 20,000) |
| `/pace=200` | sends that many tokens a second (0: as fast as possible) |
| `/fail=20` | loses the connection after 20 tokens (0: before the first) |
| `/hang=20` | sends 20 tokens, then nothing until you stop it |
| `/empty` | sends an empty answer |
| `/ratelimit=2` | fails as rate limited, with a retry after 2 s (`/ratelimit=2,1`: every other time) |
| `/echo TEXT` | repeats the rest of your message exactly |
| `/help` | shows this list, and how to make the model call tools |
"""

HELP = f"""\
{BASIC_HELP}
To make it call tools, write:

| Directive | What the demo model does |
| --- | --- |
| `/call NAME {{json}}` | calls a tool; several in a row run in parallel |
| `/then` | begins the next round of calls, after the results of the tools |
| `/times=200` | before `/call`: that many parallel calls (at most 256), with `{{i}}` in texts replaced by 1, 2, … |
| `/loop` | repeats the last round for ever, with `{{round}}` in texts replaced by the round's number |
| `/text TEXT` | sends this text before the calls of the round |
| `/say TEXT` | sets the answer at the end, instead of the results of the tools |
| `/ask TEXT`, `/plan TEXT` | only asks, or only announces, before the calls |
| `/wait=0.5` | waits for that many seconds before each round |
| `/failround=2` | loses the connection in the second round (`/failround=2,1`: the first time only) |
| `/hanground=2` | sends nothing in the second round until you stop it |
"""

ANSWER = """\
# Hello from the demo model

You asked: {quote}
{files}
I am the **demo model**: a script that ships with Khala, so that you can try streaming, stopping and reconnecting \
without a key. I don't understand messages. Everything else is real: this text is streamed as it is written, \
to every window that shows this chat.

## Use a real model

1. Get a key from a provider, or run a local server that speaks the OpenAI protocol.
2. Set it in the environment and start Khala again:

```sh
export KHALA_MODEL=anthropic:{anthropic}  # and ANTHROPIC_API_KEY
export KHALA_MODEL=openai:{openai}  # and OPENAI_API_KEY
export KHALA_MODEL=google:{google}  # and GEMINI_API_KEY
export KHALA_MODEL=openai:NAME  # and OPENAI_BASE_URL, of a local server
```

## Direct the demo

Write one or more of these words in your message:

{help}
Try `/words=500 /pace=100`, and reload the page during the answer.
"""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The script of one call. `…_after`: a number of tokens; None is never. `pace`: tokens a second; 0 is no delay.

    `retry_after`: seconds; makes calls fail as rate limited, `refusals` times, or always if that is None.
    """

    tokens: tuple[str, ...]
    pace: float = DEFAULT_PACE
    even: bool = False
    """Whether the pace has no jitter, because the message sets it."""
    fail_after: int | None = None
    hang_after: int | None = None
    retry_after: float | None = None
    refusals: int | None = None
    finish: Literal["stop", "length"] = "stop"
    wait: float = 0.0
    """Seconds before the first token."""
    uses: tuple[ToolUse, ...] = ()
    """The tool calls at the end."""
    failures: int | None = None
    """How many calls fail at `fail_after`; None is all."""


def write(
    message: str,
    *,
    partial_answer: str = "",
    limit: int | None = None,
    otherwise: str | None = None,
    files: Sequence[PromptFile] = (),
) -> Script:
    """The script of the answer to a message, in at most `limit` tokens, and without `partial_answer` at its beginning.

    Without a directive for the answer it is `otherwise`, or a greeting that lists the `files`.
    """
    directives, echo = _parse(message)
    default = _greeting(message, files) if otherwise is None else otherwise
    whole = tuple(_answer(default, directives, echo))
    script = script_of(whole, message, partial_answer=partial_answer, limit=limit)
    sent = len(whole) - len(_after_beginning(whole, partial_answer))
    wait, _, refusals = directives.get("ratelimit", "").partition(",")
    return msgspec.structs.replace(
        script,
        fail_after=_token_index(directives.get("fail"), sent, len(script.tokens)),
        hang_after=_token_index(directives.get("hang"), sent, len(script.tokens)),
        retry_after=float(wait) if wait else None,
        refusals=min(int(refusals), MAX_REFUSALS) if refusals else None,
    )


def script_of(whole: tuple[str, ...], message: str, *, partial_answer: str = "", limit: int | None = None) -> Script:
    """The script of these tokens at the message's pace, in at most `limit` tokens and without `partial_answer`."""
    directives, _ = _parse(message)
    rest = _after_beginning(whole, partial_answer)
    tokens = rest if limit is None else rest[:limit]
    return Script(
        tokens=tokens,
        pace=float(min(int(directives.get("pace", DEFAULT_PACE)), MAX_PACE)),
        even="pace" in directives,
        finish="stop" if len(tokens) == len(rest) else "length",
    )


def stopped(script: Script, stops: Sequence[str]) -> Script:
    """The script up to the first of these texts, without tool calls after it."""
    text = "".join(script.tokens)
    ends = [index for stop in stops if (index := text.find(stop)) >= 0]
    if not ends:
        return script
    left, tokens = min(ends), []
    for token in script.tokens:
        tokens.append(token[:left])
        left -= len(tokens[-1])
    return msgspec.structs.replace(script, tokens=tuple(filter(None, tokens)), finish="stop", uses=())


def has_directive(message: str) -> bool:
    """Whether the message has a directive."""
    directives, echo = _parse(message)
    return bool(directives) or echo is not None


def delays(script: Script) -> Iterator[float]:
    """Seconds before each token. The jitter of ±30 % depends on the text only, so that delays are repeatable."""
    for index, token in enumerate(script.tokens):
        if not script.pace:
            yield 0.0
            continue
        noise = 0.0 if script.even else zlib.crc32(f"{index}{token}".encode(errors="replace")) / 2**32 - 0.5
        yield (1 + 0.6 * noise) / script.pace


def split(text: str, length: int = TOKEN_CHARACTERS) -> Iterator[str]:
    """Split a text into tokens of `length` characters."""
    return (text[start : start + length] for start in range(0, len(text), length))


def _parse(message: str) -> tuple[dict[str, str], str | None]:
    """The directives of a message, and the text after `/echo`, if there is one."""
    echo = _ECHO.search(message)
    before_echo = message[: echo.start()] if echo else message
    directives: dict[str, str] = {}
    for word in _WORD.findall(before_echo):
        if match := _DIRECTIVE.fullmatch(word):
            name, value, *_ = (*filter(None, match.groups()), "")
            directives[name] = value
    return directives, message[echo.end() :] if echo else None


def _answer(otherwise: str, directives: dict[str, str], echo: str | None) -> Iterator[str]:
    if "empty" in directives:
        return iter(())
    if echo is not None:
        return split(echo)
    if "words" in directives:
        count = min(int(directives["words"]), MAX_WORDS)
        return (f"word{number}{' ' if number < count else ''}" for number in range(1, count + 1))
    return split(HELP if "help" in directives else otherwise)


def shorten(text: str, max_characters: int = 200) -> str:
    """The text on one line of at most `max_characters`."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def list_files(files: Sequence[PromptFile]) -> str:
    """A list of a message's files; an empty text if it has none."""
    if not files:
        return ""
    lines = [f"- `{shorten(file.name)}`: {file.media_type}, {len(file.data)} bytes" for file in files[:MAX_LISTED]]
    further = [f"- and {len(files) - MAX_LISTED} more"] if len(files) > MAX_LISTED else []
    return "\n".join(("", "", "Attached files:", "", *lines, *further, ""))


def _greeting(message: str, files: Sequence[PromptFile]) -> str:
    quote = shorten(message)
    names = {name: spec.default_model for name, spec in PROVIDERS.items()}
    return ANSWER.format(
        quote=f"“{quote}”" if quote else "nothing at all.",
        files=list_files(files).removeprefix("\n"),
        help=BASIC_HELP,
        **names,
    )


def _after_beginning(tokens: tuple[str, ...], partial_answer: str) -> tuple[str, ...]:
    """The tokens after `partial_answer`, which may end inside a token; all tokens if they do not begin with it."""
    ends = list(accumulate(map(len, tokens)))
    if not "".join(tokens).startswith(partial_answer):
        return tokens
    index = bisect_right(ends, len(partial_answer))
    if index == len(tokens):
        return ()
    return (tokens[index][len(partial_answer) - ends[index] :], *tokens[index + 1 :])


def _token_index(value: str | None, sent: int, last: int) -> int | None:
    """The index of the remaining token at which the failure occurs; at most the index after the last token."""
    return None if value is None else min(max(0, int(value) - sent), last)
