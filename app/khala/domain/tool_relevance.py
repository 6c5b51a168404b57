"""Chooses the tools of a prompt by their lexical relevance to the conversation, if more are offered than a prompt gets.

The words of a tool's name and description are compared with those of the text. A word counts the more, the fewer tools
have it, and more in a name than in a description.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from khala.domain.tools import ToolSpec

MAX_RELEVANT_TOOLS = 24
"""If more tools are offered, a prompt gets the relevant ones and `find_tools`."""
MAX_FOUND_TOOLS = 8
"""Tools that one call of `find_tools` finds."""
FIND_TOOLS = "find_tools"
"""The name of the tool that finds the others."""
NAME_WEIGHT = 3.0
"""The weight of a word in a tool's name. In its description, a word has the weight 1."""
MIN_PREFIX_CHARACTERS = 4
"""Two words match if one begins with the other and has so many characters: `issue` matches `issues`."""
MAX_TEXT_WORDS = 400
MAX_REMEMBERED_TOOLS = 2048
"""Tools whose words are cached, because each step of a run ranks the same ones."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP_WORDS = frozenset(
    {
        "an", "and", "any", "are", "as", "at", "be", "by", "can", "do", "for", "from", "get", "has", "have", "how",
        "if", "in", "into", "is", "it", "its", "me", "my", "not", "of", "on", "or", "our", "please", "so", "some",
        "that", "the", "their", "them", "there", "these", "this", "to", "tool", "up", "use", "used", "uses", "using",
        "was", "we", "what", "when", "where", "which", "who", "will", "with", "you", "your",
    }
)  # fmt: skip
_words_of_tools: dict[int, tuple[ToolSpec, AbstractSet[str], AbstractSet[str]]] = {}
"""Tools with the words of their names and descriptions, by `id()`, which stays unique because they are kept here."""


def relevant_tools(
    text: str, specs: Sequence[ToolSpec], pinned: Collection[str] = (), limit: int = MAX_RELEVANT_TOOLS
) -> list[ToolSpec]:
    """At most `limit` tools, the most relevant first; the pinned ones before all others, even if they are more.

    Tools of equal relevance stay in their order, so a text without any matching word gets the first ones.
    """
    first = [spec for spec in specs if spec.name in pinned]
    others = [spec for spec in specs if spec.name not in pinned]
    scores = _scores(_words(text)[:MAX_TEXT_WORDS], others)
    ranked = sorted(others, key=lambda spec: -scores[id(spec)])
    return first + ranked[: max(0, limit - len(first))]


def matching_tools(query: str, specs: Sequence[ToolSpec], limit: int) -> list[ToolSpec]:
    """At most `limit` tools that match at least one word of the query, the best first."""
    scores = _scores(_words(query)[:MAX_TEXT_WORDS], specs)
    return sorted((spec for spec in specs if scores[id(spec)] > 0), key=lambda spec: -scores[id(spec)])[:limit]


def _scores(words: Sequence[str], specs: Sequence[ToolSpec]) -> Mapping[int, float]:
    """The relevance of each tool, by `id()`: for each word of the text, its weight if the tool has it."""
    known = [(spec, *_tool_words(spec)) for spec in specs]
    frequency = Counter(word for _, name, description in known for word in name | description)
    matches = {word: _matches(word, frequency) for word in dict.fromkeys(words)}
    rarity = {word: math.log(1 + len(specs) / count) for word, count in frequency.items()}
    return {
        id(spec): sum(
            max((rarity[match] * _weight(match, name, description) for match in matched), default=0.0)
            for matched in matches.values()
        )
        for spec, name, description in known
    }


def _weight(word: str, name: AbstractSet[str], description: AbstractSet[str]) -> float:
    if word in name:
        return NAME_WEIGHT
    return 1.0 if word in description else 0.0


def _matches(word: str, known: Collection[str]) -> list[str]:
    """The known words that this word matches."""
    return [
        other
        for other in known
        if other == word
        or (min(len(word), len(other)) >= MIN_PREFIX_CHARACTERS and (other.startswith(word) or word.startswith(other)))
    ]


def _tool_words(spec: ToolSpec) -> tuple[AbstractSet[str], AbstractSet[str]]:
    """The words of a tool's name, and those of its description."""
    cached = _words_of_tools.get(id(spec))
    if cached is None or cached[0] is not spec:
        if len(_words_of_tools) >= MAX_REMEMBERED_TOOLS:
            _words_of_tools.clear()
        cached = _words_of_tools[id(spec)] = spec, frozenset(_words(spec.name)), frozenset(_words(spec.description))
    return cached[1:]


def _words(text: str) -> list[str]:
    """The words of a text or of a name such as `read_file` or `readFile`, without those that say nothing."""
    words = (word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text)))
    return [word for word in words if len(word) > 1 and word not in _STOP_WORDS]
