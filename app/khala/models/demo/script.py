"""The demo model's script, with its text and its timing: a pure function of a message."""

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
MAX_REFUSALS = 9
MAX_LISTED = 20
NATURAL_PACE = 50.0
TOKEN_LENGTH = 4

_DIRECTIVE = re.compile(r"/(?:(words|pace|fail|hang)=([0-9]{1,9})|(ratelimit)=([0-9]{1,9}(?:,[0-9])?)|(empty|help))")
_ECHO = re.compile(r"(?<!\S)/echo(?:\s|$)")
_WORD = re.compile(r"(?<!\S)\S+")

BASIC = """\
| Directive | What the demo model does |
| --- | --- |
| `/words=300` | says that many numbered words (at most 20,000) |
| `/pace=200` | speaks at so many tokens a second (0: as fast as possible) |
| `/fail=20` | loses the connection after 20 tokens (0: before the first) |
| `/hang=20` | says 20 tokens, then falls silent until you stop it |
| `/empty` | answers nothing |
| `/ratelimit=2` | fails with "too many requests, wait 2 s" (`/ratelimit=2,1`: every other time) |
| `/echo TEXT` | repeats the rest of your message exactly |
| `/help` | shows this list, and how to make the model call tools |
"""

HELP = f"""\
{BASIC}
To make it call tools, write:

| Directive | What the demo model does |
| --- | --- |
| `/call NAME {{json}}` | calls a tool; several in a row are called at once |
| `/then` | begins the next round of calls, once the tools have answered |
| `/times=200` | before `/call`: that many such calls at once (at most 256), with `{{i}}` in their texts counting them |
| `/loop` | repeats the last round for ever, with `{{round}}` in its texts counting the rounds |
| `/text TEXT` | says this before the calls of the round |
| `/say TEXT` | is the answer at the end, instead of what the tools said |
| `/ask TEXT`, `/plan TEXT` | only asks, or only announces, before it goes on |
| `/wait=0.5` | thinks for that many seconds before each round |
| `/failround=2` | loses the connection in the second round (`/failround=2,1`: the first time only) |
| `/hanground=2` | falls silent in the second round until you stop it |
"""

ANSWER = """\
# Hello from the demo model

You asked: {quote}
{files}
I am the **demo model**: a script that ships with Khala, so that you can try streaming, stopping and reconnecting \
without a key. I don't understand what I read. Everything around me is real: this text reaches you as it is written, \
in every window that shows this chat.

## Use a real model

1. Take a key from a provider, or run a local server that speaks the OpenAI protocol.
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
Try `/words=500 /pace=100`, and reload the page in the midst of it.
"""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A performance. `…_after` counts tokens, None is never; `pace` is tokens a second, 0 is at once.

    `retry_after` seconds makes calls fail as rate limited: `refusals` times, or always where that is None.
    """

    tokens: tuple[str, ...]
    pace: float = NATURAL_PACE
    even: bool = False
    """Without the jitter of natural speech: somebody asked for this pace."""
    fail_after: int | None = None
    hang_after: int | None = None
    retry_after: float | None = None
    refusals: int | None = None
    finish: Literal["stop", "length"] = "stop"
    wait: float = 0.0
    """Seconds of silence before all."""
    uses: tuple[ToolUse, ...] = ()
    """The tools that are called at the end."""
    failures: int | None = None
    """How often `fail_after` comes true, always where it is None."""


def write(
    message: str,
    *,
    said: str = "",
    limit: int | None = None,
    otherwise: str | None = None,
    files: Sequence[PromptFile] = (),
) -> Script:
    """The script that answers a message, in at most `limit` tokens; without the beginning `said`, if it began so.

    Where no directive says what to say it is `otherwise`, or else a greeting that tells which `files` came.
    """
    directives, echo = _read(message)
    default = _greeting(message, files) if otherwise is None else otherwise
    whole = tuple(_answer(default, directives, echo))
    script = speak(whole, message, said=said, limit=limit)
    heard = len(whole) - len(_after_beginning(whole, said))
    wait, _, refusals = directives.get("ratelimit", "").partition(",")
    return msgspec.structs.replace(
        script,
        fail_after=_place(directives.get("fail"), heard, len(script.tokens)),
        hang_after=_place(directives.get("hang"), heard, len(script.tokens)),
        retry_after=float(wait) if wait else None,
        refusals=min(int(refusals), MAX_REFUSALS) if refusals else None,
    )


def speak(whole: tuple[str, ...], message: str, *, said: str = "", limit: int | None = None) -> Script:
    """The script that says these tokens at the message's pace, in at most `limit` tokens and without a beginning."""
    directives, _ = _read(message)
    rest = _after_beginning(whole, said)
    tokens = rest if limit is None else rest[:limit]
    return Script(
        tokens=tokens,
        pace=float(min(int(directives.get("pace", NATURAL_PACE)), MAX_PACE)),
        even="pace" in directives,
        finish="stop" if len(tokens) == len(rest) else "length",
    )


def directed(message: str) -> bool:
    """Whether there is a directive in the message."""
    directives, echo = _read(message)
    return bool(directives) or echo is not None


def delays(script: Script) -> Iterator[float]:
    """Seconds before each token. The jitter of ±30 % follows from the text, so the same answer has the same rhythm."""
    for index, token in enumerate(script.tokens):
        if not script.pace:
            yield 0.0
            continue
        noise = 0.0 if script.even else zlib.crc32(f"{index}{token}".encode(errors="replace")) / 2**32 - 0.5
        yield (1 + 0.6 * noise) / script.pace


def cut(text: str, length: int = TOKEN_LENGTH) -> Iterator[str]:
    """Cut a text into tokens of so many characters; joined they are the text."""
    return (text[start : start + length] for start in range(0, len(text), length))


def _read(message: str) -> tuple[dict[str, str], str | None]:
    """The directives of a message, and the text to echo if it is to be echoed."""
    echo = _ECHO.search(message)
    ruling = message[: echo.start()] if echo else message
    directives: dict[str, str] = {}
    for word in _WORD.findall(ruling):
        if found := _DIRECTIVE.fullmatch(word):
            name, value, *_ = (*filter(None, found.groups()), "")
            directives[name] = value
    return directives, message[echo.end() :] if echo else None


def _answer(otherwise: str, directives: dict[str, str], echo: str | None) -> Iterator[str]:
    if "empty" in directives:
        return iter(())
    if echo is not None:
        return cut(echo)
    if "words" in directives:
        count = min(int(directives["words"]), MAX_WORDS)
        return (f"word{number}{' ' if number < count else ''}" for number in range(1, count + 1))
    return cut(HELP if "help" in directives else otherwise)


def short(text: str, most: int = 200) -> str:
    """The text on one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def listed(files: Sequence[PromptFile]) -> str:
    """Which files came with a message, in a list; nothing where none did."""
    if not files:
        return ""
    lines = [f"- `{short(file.name)}`: {file.media_type}, {len(file.data)} bytes" for file in files[:MAX_LISTED]]
    further = [f"- and {len(files) - MAX_LISTED} more"] if len(files) > MAX_LISTED else []
    return "\n".join(("", "", "With it came:", "", *lines, *further, ""))


def _greeting(message: str, files: Sequence[PromptFile]) -> str:
    quote = short(message)
    names = {name: spec.default_model for name, spec in PROVIDERS.items()}
    return ANSWER.format(
        quote=f"“{quote}”" if quote else "nothing at all.", files=listed(files).removeprefix("\n"), help=BASIC, **names
    )


def _after_beginning(tokens: tuple[str, ...], said: str) -> tuple[str, ...]:
    """The tokens after a beginning, which may end within one; all of them if they begin otherwise."""
    ends = list(accumulate(map(len, tokens)))
    if not "".join(tokens).startswith(said):
        return tokens
    index = bisect_right(ends, len(said))
    if index == len(tokens):
        return ()
    return (tokens[index][len(said) - ends[index] :], *tokens[index + 1 :])


def _place(given: str | None, heard: int, last: int) -> int | None:
    """The index of the remaining token at which the failure occurs; at most the index after the last token."""
    return None if given is None else min(max(0, int(given) - heard), last)
