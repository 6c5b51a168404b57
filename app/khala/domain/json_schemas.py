"""JSON Schemas (2020-12) that somebody else wrote, as graphs: which schema applies which, and how much work that is."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from khala.domain.errors import InvalidInput
from khala.domain.schema_keywords import (
    ANCHORS,
    DATA,
    KNOWN_KEYWORDS,
    TYPE_NAMES,
    encoded_references,
    own_weight,
    references,
    subschemas,
)

MAX_SCHEMA_DEPTH = 64
"""Levels of nesting in a schema, as JSON."""
MAX_SCHEMA_PARTS = 1_000
"""Objects and booleans in a schema, outside of its constants: each of them may be a schema itself."""
MAX_EXPANDED_REFERENCES = 1_000
"""References that are followed for one value, each counted as often as it is reached."""
MAX_COST = 10**9
"""Where the count of work stops: more than that is too much for any argument."""
MAX_COUNTED_SCHEMAS = 10_000
"""Schemas, times levels of nesting, whose work is counted: it takes 2 µs each."""
MAX_SHOWN_CHARACTERS = 100
"""Characters of a schema's own text that an error repeats."""

SAFE_INTEGER = 2**63
"""The size from which a number is no machine integer, and costs as much as it has digits."""


class ValidationCost(NamedTuple):
    """How much work a schema is, at most, for one value with all that is within it."""

    weight: int
    """Keywords applied, each with what it compares."""
    search: int
    """Bytes of the patterns' programs that run over a text."""
    unique: int
    """Times that items are compared with each other."""


class SchemaNode:
    """One schema, and those that it applies."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.same: list[SchemaNode] = []
        self.below: list[SchemaNode] = []
        self.references: list[SchemaNode] = []
        """Those of `same` that a reference leads to."""
        self.place = 0
        """Where it is in an order in which every schema comes after those that it applies to the same value."""

    @property
    def patterns(self) -> list[str]:
        """Its regular expressions."""
        named = self.schema.get("patternProperties")
        found = [*named] if isinstance(named, dict) else []
        own = self.schema.get("pattern")
        return [*found, own] if isinstance(own, str) else found


class SchemaGraph:
    """A schema as a graph.

    Raises `InvalidInput`, with a sentence that ends in a full stop, for a schema that is nested too deeply or has too
    many parts; for a reference that leads out of it, to nothing, to what is no schema, or back to the same value; for
    references that multiply; for a nested `$schema` or `$id` that changes what the rest means.
    It takes `$schema` and `$id` out of the schema that it is given, and writes references as URIs should be.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        require_measurable(schema)
        self.root = schema
        self._nodes: dict[int, SchemaNode] = {}
        self._anchors: dict[str, SchemaNode] = {}
        self._based = False
        schema.pop("$schema", None)
        schema.pop("$id", None)
        self._add(schema)
        self._connect()
        self.nodes = _ordered(list(self._nodes.values()))
        _bound_references(self.nodes)
        self._own: list[ValidationCost] = []
        self._deepest: list[ValidationCost] = []
        self._totals: list[ValidationCost] = []

    def weigh(self, sizes: dict[str, int]) -> None:
        """Count the work, with the sizes of the patterns' programs. Has to be called before `work`."""
        self._own = [
            ValidationCost(
                own_weight(node.schema), sum(map(sizes.__getitem__, node.patterns)), int("uniqueItems" in node.schema)
            )
            for node in self.nodes
        ]
        self._deepest = self._level(None)
        self._totals = [self._total()]

    def work(self, depth: int) -> ValidationCost:
        """The most work that it is for a value with so many levels of nesting."""
        while len(self._totals) <= depth:
            if len(self._totals) * len(self.nodes) > MAX_COUNTED_SCHEMAS:
                return ValidationCost(MAX_COST, MAX_COST, MAX_COST)
            level = self._level(self._deepest)
            if level == self._deepest:
                return self._totals[-1]
            self._deepest = level
            self._totals.append(self._total())
        return self._totals[depth]

    def _total(self) -> ValidationCost:
        return self._deepest[self._nodes[id(self.root)].place]

    def _level(self, below: list[ValidationCost] | None) -> list[ValidationCost]:
        level: list[ValidationCost] = []
        for node, own in zip(self.nodes, self._own, strict=True):
            applied = [level[inner.place] for inner in node.same]
            if any(key in node.schema for key in ("unevaluatedItems", "unevaluatedProperties")):
                applied += applied  # they are applied once more, to find out what they evaluate
            if below is not None:
                applied += [below[inner.place] for inner in node.below]
            weight, search, unique = (min(sum(counts), MAX_COST) for counts in zip(own, *applied, strict=True))
            level.append(ValidationCost(weight, search, unique))
        return level

    def _add(self, schema: dict[str, Any]) -> None:
        """Take in the schema, and all those within it."""
        ahead = [schema]
        while ahead:
            one = ahead.pop()
            if id(one) in self._nodes:
                continue
            node = self._nodes[id(one)] = SchemaNode(one)
            self._name(node)
            ahead.extend(inner for _, inner in subschemas(one))

    def _name(self, node: SchemaNode) -> None:
        if len(types if isinstance(types := node.schema.get("type"), list) else ()) > len(TYPE_NAMES):
            raise InvalidInput(f"A type is a list of at most {len(TYPE_NAMES)} names.")
        if "$schema" in node.schema:
            raise InvalidInput("Only the whole schema may have a $schema, not a part of it.")
        self._based = node.schema.pop("$id", None) is not None or self._based
        for name in {node.schema[key] for key in ANCHORS if isinstance(node.schema.get(key), str)}:
            if name in self._anchors:
                raise InvalidInput(f"The schema has the anchor {shortened(name)} twice.")
            self._anchors[name] = node

    def _connect(self) -> None:
        """Tell each schema which ones it applies. What a reference leads to may be a schema not seen before."""
        done: set[int] = set()
        while len(done) < len(self._nodes):
            for key, node in [(key, node) for key, node in self._nodes.items() if key not in done]:
                done.add(key)
                node.references = [self._target(target) for target in references(node.schema)]
                node.schema.update(encoded_references(node.schema))
        for node in self._nodes.values():
            node.references = [one for one in node.references if one is not ANY_VALUE]
            inner = [(reach, self._nodes[id(schema)]) for reach, schema in subschemas(node.schema)]
            node.same = [one for reach, one in inner if reach == "same"] + node.references
            node.below = [one for reach, one in inner if reach == "below"]

    def _target(self, target: str) -> SchemaNode:
        if not target.startswith("#"):
            raise InvalidInput(f"The schema may refer only to itself, by #…, not to {shortened(target)}.")
        if self._based:
            raise InvalidInput("A schema with references may not have an $id in a part of it.")
        fragment = unquote(target[1:])
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise _missing(target)
            return self._anchors[fragment]
        found = self._at(fragment, target)
        if isinstance(found, bool):
            return ANY_VALUE
        if not isinstance(found, dict):
            raise _no_schema(target)
        self._add(found)
        if self._based:
            raise InvalidInput("A schema with references may not have an $id in a part of it.")
        return self._nodes[id(found)]

    def _at(self, pointer: str, target: str) -> Any:
        """What a JSON pointer leads to: a schema, or something under a keyword that nothing else gives a meaning."""
        found: Any = self.root
        keyword: str | None = None
        for step in [one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:]]:
            if id(found) in self._nodes:
                keyword = step
            found = _step(found, step, target)
        if id(found) not in self._nodes and keyword in KNOWN_KEYWORDS and not isinstance(found, bool):
            raise _no_schema(target)
        return found


ANY_VALUE = SchemaNode({})
"""Where a reference to `true` or `false` leads."""


def require_measurable(schema: Any) -> None:
    """Raise `InvalidInput` for a schema that is nested too deeply, or has too many parts."""
    parts, ahead = 0, [(schema, 0, True)]
    while ahead:
        value, depth, counts = ahead.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidInput("The schema is nested too deeply.")
        parts += counts and isinstance(value, dict | bool)
        if parts > MAX_SCHEMA_PARTS:
            raise InvalidInput(f"A schema has at most {MAX_SCHEMA_PARTS:,} parts.")
        if isinstance(value, dict):
            ahead += [
                (inner, depth + 1, counts and (key not in DATA or isinstance(inner, dict)))
                for key, inner in value.items()
            ]
        elif isinstance(value, list):
            ahead += [(inner, depth + 1, counts) for inner in value if isinstance(inner, dict | list | bool)]


def has_large_integers(value: Any, *, limit: int = SAFE_INTEGER) -> bool:
    """Whether there is an integer in it whose size is the limit or more."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            ahead.extend(one.values())
        elif isinstance(one, list):
            ahead.extend(one)
        elif isinstance(one, int) and not -limit < one < limit:
            return True
    return False


def shortened(text: str) -> str:
    """The text, cut where it is long."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 1]}…"


def _step(found: Any, step: str, target: str) -> Any:
    if isinstance(found, dict) and step in found:
        return found[step]
    if isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 6 and int(step) < len(found):
        return found[int(step)]
    raise _missing(target)


def _missing(target: str) -> InvalidInput:
    return InvalidInput(f"The schema refers to {shortened(target)}, which it does not have.")


def _no_schema(target: str) -> InvalidInput:
    return InvalidInput(f"The schema refers to {shortened(target)}, which is no schema.")


def _ordered(nodes: Sequence[SchemaNode]) -> list[SchemaNode]:
    """The schemas, each after those that it applies to the same value (Kahn's algorithm)."""
    users: dict[int, list[SchemaNode]] = {id(node): [] for node in nodes}
    waiting = {id(node): len(node.same) for node in nodes}
    for node in nodes:
        for inner in node.same:
            users[id(inner)].append(node)
    ordered = [node for node in nodes if not node.same]
    for place, node in enumerate(ordered):  # which grows as it is walked
        node.place = place
        for user in users[id(node)]:
            waiting[id(user)] -= 1
            if not waiting[id(user)]:
                ordered.append(user)
    if len(ordered) < len(nodes):
        raise InvalidInput("The schema refers to itself without end.")
    return ordered


def _bound_references(nodes: Sequence[SchemaNode]) -> None:
    """Raise `InvalidInput` for references that multiply."""
    followed: list[int] = []
    for node in nodes:
        count = len(node.references) + sum(followed[inner.place] for inner in node.same)
        if count > MAX_EXPANDED_REFERENCES:
            raise InvalidInput(f"References lead to more than {MAX_EXPANDED_REFERENCES:,} others, one after the other.")
        followed.append(count)
