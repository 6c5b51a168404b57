"""What the demo model says and when: a pure function from a message to a script."""

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal

import msgspec

from app.models.catalog import DEFAULTS

MAX_WORDS = 20_000
MAX_PACE = 10_000
MAX_REFUSALS = 9
NATURAL_PACE = 50.0
TOKEN_LENGTH = 4

_DIRECTIVE = re.compile(r"/(?:(words|pace|fail|hang)=([0-9]{1,9})|(ratelimit)=([0-9]{1,9}(?:,[0-9])?)|(empty|help))")
_ECHO = re.compile(r"(?<!\S)/echo(?:\s|$)")
_WORD = re.compile(r"(?<!\S)\S+")

HELP = """\
| Directive | What the demo model does |
| --- | --- |
| `/words=300` | says that many numbered words (at most 20,000) |
| `/pace=200` | speaks at so many tokens a second (0: as fast as possible) |
| `/fail=20` | loses the connection after 20 tokens (0: before the first) |
| `/hang=20` | says 20 tokens, then falls silent until you stop it |
| `/empty` | answers nothing |
| `/ratelimit=2` | fails with "too many requests, wait 2 s" (`/ratelimit=2,1`: every other time) |
| `/echo TEXT` | repeats the rest of your message exactly |
| `/help` | shows this list |
"""

ANSWER = """\
# Hello from the demo model

You asked: {quote}

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


def write(message: str, *, said: str = "", limit: int | None = None) -> Script:
    """The script that answers a message, in at most `limit` tokens; without the beginning `said`, if it began so."""
    directives, echo = _read(message)
    whole = tuple(_answer(message, directives, echo))
    rest = _after_beginning(whole, said)
    heard = len(whole) - len(rest)
    tokens = rest if limit is None else rest[:limit]
    wait, _, refusals = directives.get("ratelimit", "").partition(",")
    return Script(
        tokens=tokens,
        pace=float(min(int(directives.get("pace", NATURAL_PACE)), MAX_PACE)),
        even="pace" in directives,
        fail_after=_place(directives.get("fail"), heard, len(tokens)),
        hang_after=_place(directives.get("hang"), heard, len(tokens)),
        retry_after=float(wait) if wait else None,
        refusals=min(int(refusals), MAX_REFUSALS) if refusals else None,
        finish="stop" if len(tokens) == len(rest) else "length",
    )


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


def _answer(message: str, directives: dict[str, str], echo: str | None) -> Iterator[str]:
    if "empty" in directives:
        return iter(())
    if echo is not None:
        return cut(echo)
    if "words" in directives:
        count = min(int(directives["words"]), MAX_WORDS)
        return (f"word{number}{' ' if number < count else ''}" for number in range(1, count + 1))
    return cut(HELP if "help" in directives else _greeting(message))


def _greeting(message: str) -> str:
    quote = " ".join(message.split())
    short = quote if len(quote) <= 200 else quote[:199] + "…"
    names = {provider: name for provider, name in DEFAULTS.items() if provider != "demo"}
    return ANSWER.format(quote=f"“{short}”" if short else "nothing at all.", help=HELP, **names)


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
    """Where trouble comes, of the tokens still to be said; what would come after the last comes right at the end."""
    return None if given is None else min(max(0, int(given) - heard), last)
