"""Chooses the tools of a prompt by their relevance to the conversation, if more are offered than a prompt gets.

Relevance is the evidence by which agents are routed (`khala.domain.routing`): the BM25 score of the words, and how
close the meaning is where there are vectors. A tool's document for BM25 is its name, its description, and the names and
descriptions of its parameters. Its vector is that of its name and description.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from khala.domain import bm25, routing, search_terms
from khala.domain.routing import Meaning
from khala.domain.tools import ToolSpec

MAX_RELEVANT_TOOLS = 24
"""If more tools are offered, a prompt gets the relevant ones and `find_tools`."""
MAX_FOUND_TOOLS = 8
"""Tools that one call of `find_tools` finds."""
FIND_TOOLS = "find_tools"
"""The name of the tool that finds the others."""
PARAMETER_WEIGHT = 0.5
"""The weight of a word of a parameter. In a tool's name or description it is 1. Chosen on the tune half of the
evaluation (docs/evaluation.md) among 0, 0.5 and 1."""
MAX_TEXT_WORDS = 400
MAX_TEXT_CHARACTERS = 2_000
"""Characters of a tool's name and description of which the vector is computed."""
MAX_REMEMBERED_TOOLS = 2048
"""Tools whose documents are cached, because each step of a run ranks the same ones."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_documents: dict[int, tuple[ToolSpec, bm25.Document]] = {}
"""Tools with their documents, by `id()`, which stays unique because the tools are kept here."""


def relevant_tools(
    text: str,
    specs: Sequence[ToolSpec],
    pinned: Collection[str] = (),
    limit: int = MAX_RELEVANT_TOOLS,
    meaning: Meaning | None = None,
) -> list[ToolSpec]:
    """At most `limit` tools, the most relevant first; the pinned ones before all others, even if they are more.

    Tools of equal relevance stay in their order, so a text without any matching word gets the first ones. `meaning`
    has the closeness of each tool that is not pinned.
    """
    first = [spec for spec in specs if spec.name in pinned]
    others = [spec for spec in specs if spec.name not in pinned]
    relevance = _relevance(_scores(text, others), meaning)
    return first + sorted(others, key=lambda spec: -relevance[spec.name])[: max(0, limit - len(first))]


def matching_tools(query: str, specs: Sequence[ToolSpec], limit: int, meaning: Meaning | None = None) -> list[ToolSpec]:
    """At most `limit` tools that match at least one word of the query, or are close to its meaning, the best first."""
    scores = _scores(query, specs)
    relevance = _relevance(scores, meaning)
    matching = (
        spec for spec in specs if scores[spec.name] > 0 or (meaning is not None and meaning.evidence(spec.name) > 0)
    )
    return sorted(matching, key=lambda spec: -relevance[spec.name])[:limit]


def text_of(spec: ToolSpec) -> str:
    """The text of a tool whose vector is compared."""
    name = " ".join(_split(spec.name).replace("_", " ").split())
    return f"{name}\n{spec.description}"[:MAX_TEXT_CHARACTERS]


def _relevance(scores: Mapping[str, float], meaning: Meaning | None) -> Mapping[str, float]:
    return {name: routing.evidence(name, score, meaning) for name, score in scores.items()}


def _scores(text: str, specs: Sequence[ToolSpec]) -> Mapping[str, float]:
    """The BM25 score of each tool, by name."""
    documents = [_document(spec) for spec in specs]
    stems = (stem for stem, _ in search_terms.stems(_split(text), limit=MAX_TEXT_WORDS))
    scores = bm25.scores(bm25.rarities(stems, documents), documents)
    return {spec.name: score for spec, score in zip(specs, scores, strict=True)}


def _document(spec: ToolSpec) -> bm25.Document:
    cached = _documents.get(id(spec))
    if cached is None or cached[0] is not spec:
        if len(_documents) >= MAX_REMEMBERED_TOOLS:
            _documents.clear()
        cached = _documents[id(spec)] = spec, bm25.document(_fields(spec))
    return cached[1]


def _fields(spec: ToolSpec) -> Iterator[tuple[str, float]]:
    """The texts of a tool with their weights. Only well-formed parameters of the first level count."""
    yield _split(spec.name), 1.0
    yield spec.description, 1.0
    properties = spec.parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        yield _split(name), PARAMETER_WEIGHT
        description = schema.get("description") if isinstance(schema, dict) else None
        if isinstance(description, str):
            yield description, PARAMETER_WEIGHT


def _split(text: str) -> str:
    """The text with `readFile` as two words, as `read_file` is in any case."""
    return _CAMEL.sub(" ", text)
