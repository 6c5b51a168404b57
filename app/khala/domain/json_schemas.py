"""Untrusted JSON Schemas (2020-12) as graphs: which schema applies which, and the cost of validation."""

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
"""Objects and booleans in a schema, outside of its constants: each of them may be a subschema."""
MAX_EXPANDED_REFERENCES = 1_000
"""References that are followed for one value, counted each time that they are reached."""
MAX_COST = 10**9
"""The cap of all costs, which is too expensive for any value."""
MAX_COUNTED_SCHEMAS = 10_000
"""Schemas times levels of nesting whose cost is computed, at 2 µs each."""
MAX_SHOWN_CHARACTERS = 100
"""Characters of a schema's text that an error message quotes."""

SAFE_INTEGER = 2**63
"""The magnitude from which an integer exceeds a machine word, so that its cost grows with its digits."""


class ValidationCost(NamedTuple):
    """The maximum cost of validating one value, including the values within it."""

    weight: int
    """Applied keywords, each with the size of what it compares."""
    search: int
    """Bytes of the compiled patterns that search a text."""
    unique: int
    """Pairwise comparisons of items (`uniqueItems`)."""


class SchemaNode:
    """One schema, and the schemas that it applies: to the `same` value, or to the values `below` it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.same: list[SchemaNode] = []
        self.below: list[SchemaNode] = []
        self.references: list[SchemaNode] = []
        """The schemas in `same` that are the targets of references."""
        self.index = 0
        """The index in `SchemaGraph.nodes`, in which each schema follows those that it applies to the same value."""

    @property
    def patterns(self) -> list[str]:
        """The regular expressions of the schema itself."""
        named = self.schema.get("patternProperties")
        found = [*named] if isinstance(named, dict) else []
        own = self.schema.get("pattern")
        return [*found, own] if isinstance(own, str) else found


class SchemaGraph:
    """A schema as a graph.

    Raises `InvalidInput`, with a full sentence,

    - for a schema that is nested too deeply or has too many parts;
    - for a reference to another document, to nothing, to something other than a schema, or back to the same value;
    - for references that expand to too many others;
    - for a nested `$schema` or `$id`, which would change the meaning of the rest.

    Modifies the given schema: removes `$schema` and `$id`, and encodes references as URIs.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        require_measurable(schema)
        self.root = schema
        self._nodes: dict[int, SchemaNode] = {}
        self._anchors: dict[str, SchemaNode] = {}
        self._has_nested_id = False
        schema.pop("$schema", None)
        schema.pop("$id", None)
        self._add(schema)
        self._connect()
        self.nodes = _ordered(list(self._nodes.values()))
        _bound_references(self.nodes)
        self._own: list[ValidationCost] = []
        self._deepest: list[ValidationCost] = []
        self._totals: list[ValidationCost] = []

    def compute_costs(self, sizes: dict[str, int]) -> None:
        """Compute the costs, given the sizes of the compiled patterns. Call it before `cost`."""
        self._own = [
            ValidationCost(
                own_weight(node.schema), sum(map(sizes.__getitem__, node.patterns)), int("uniqueItems" in node.schema)
            )
            for node in self.nodes
        ]
        self._deepest = self._level(None)
        self._totals = [self._total()]

    def cost(self, depth: int) -> ValidationCost:
        """The maximum cost for a value with `depth` levels of nesting."""
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
        return self._deepest[self._nodes[id(self.root)].index]

    def _level(self, below: list[ValidationCost] | None) -> list[ValidationCost]:
        level: list[ValidationCost] = []
        for node, own in zip(self.nodes, self._own, strict=True):
            applied = [level[inner.index] for inner in node.same]
            if any(key in node.schema for key in ("unevaluatedItems", "unevaluatedProperties")):
                applied += applied  # These keywords apply the other subschemas again, to find what they evaluate.
            if below is not None:
                applied += [below[inner.index] for inner in node.below]
            weight, search, unique = (min(sum(counts), MAX_COST) for counts in zip(own, *applied, strict=True))
            level.append(ValidationCost(weight, search, unique))
        return level

    def _add(self, schema: dict[str, Any]) -> None:
        """Add the schema and all schemas within it."""
        pending = [schema]
        while pending:
            current = pending.pop()
            if id(current) in self._nodes:
                continue
            node = self._nodes[id(current)] = SchemaNode(current)
            self._register(node)
            pending.extend(inner for _, inner in subschemas(current))

    def _register(self, node: SchemaNode) -> None:
        """Register the schema's anchors, and remove its `$id`."""
        if len(types if isinstance(types := node.schema.get("type"), list) else ()) > len(TYPE_NAMES):
            raise InvalidInput(f"A type is a list of at most {len(TYPE_NAMES)} names.")
        if "$schema" in node.schema:
            raise InvalidInput("Only the whole schema may have a $schema, not a part of it.")
        self._has_nested_id = node.schema.pop("$id", None) is not None or self._has_nested_id
        for name in {node.schema[key] for key in ANCHORS if isinstance(node.schema.get(key), str)}:
            if name in self._anchors:
                raise InvalidInput(f"The schema has the anchor {shortened(name)} twice.")
            self._anchors[name] = node

    def _connect(self) -> None:
        """Link each schema to those that it applies. A reference may lead to a schema that was not added before."""
        done: set[int] = set()
        while len(done) < len(self._nodes):
            for key, node in [(key, node) for key, node in self._nodes.items() if key not in done]:
                done.add(key)
                node.references = [self._target(target) for target in references(node.schema)]
                node.schema.update(encoded_references(node.schema))
        for node in self._nodes.values():
            node.references = [target for target in node.references if target is not ANY_VALUE]
            inner = [(reach, self._nodes[id(schema)]) for reach, schema in subschemas(node.schema)]
            node.same = [applied for reach, applied in inner if reach == "same"] + node.references
            node.below = [applied for reach, applied in inner if reach == "below"]

    def _target(self, target: str) -> SchemaNode:
        if not target.startswith("#"):
            raise InvalidInput(f"The schema may refer only to itself, by #…, not to {shortened(target)}.")
        if self._has_nested_id:
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
        if self._has_nested_id:
            raise InvalidInput("A schema with references may not have an $id in a part of it.")
        return self._nodes[id(found)]

    def _at(self, pointer: str, target: str) -> Any:
        """The target of a JSON pointer: a schema, or a value under an unknown keyword."""
        found: Any = self.root
        keyword: str | None = None
        for step in [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]:
            if id(found) in self._nodes:
                keyword = step
            found = _step(found, step, target)
        if id(found) not in self._nodes and keyword in KNOWN_KEYWORDS and not isinstance(found, bool):
            raise _no_schema(target)
        return found


ANY_VALUE = SchemaNode({})
"""The target of references to `true` or `false`."""


def require_measurable(schema: Any) -> None:
    """Raise `InvalidInput` if the schema is nested too deeply or has too many parts."""
    parts, pending = 0, [(schema, 0, True)]
    while pending:
        value, depth, counts = pending.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidInput("The schema is nested too deeply.")
        parts += counts and isinstance(value, dict | bool)
        if parts > MAX_SCHEMA_PARTS:
            raise InvalidInput(f"A schema has at most {MAX_SCHEMA_PARTS:,} parts.")
        if isinstance(value, dict):
            pending += [
                (inner, depth + 1, counts and (key not in DATA or isinstance(inner, dict)))
                for key, inner in value.items()
            ]
        elif isinstance(value, list):
            pending += [(inner, depth + 1, counts) for inner in value if isinstance(inner, dict | list | bool)]


def has_large_integers(value: Any, *, limit: int = SAFE_INTEGER) -> bool:
    """Whether the value contains an integer whose magnitude is at least the limit."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int) and not -limit < item < limit:
            return True
    return False


def shortened(text: str) -> str:
    """The text, shortened if it is long."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 1]}…"


def _step(found: Any, step: str, target: str) -> Any:
    if isinstance(found, dict) and step in found:
        return found[step]
    if isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 6 and int(step) < len(found):
        return found[int(step)]
    raise _missing(target)


def _missing(target: str) -> InvalidInput:
    return InvalidInput(f"The schema refers to {shortened(target)}, which does not exist.")


def _no_schema(target: str) -> InvalidInput:
    return InvalidInput(f"The schema refers to {shortened(target)}, which is not a schema.")


def _ordered(nodes: Sequence[SchemaNode]) -> list[SchemaNode]:
    """The schemas in an order in which each follows those that it applies to the same value (Kahn's algorithm)."""
    users: dict[int, list[SchemaNode]] = {id(node): [] for node in nodes}
    waiting = {id(node): len(node.same) for node in nodes}
    for node in nodes:
        for inner in node.same:
            users[id(inner)].append(node)
    ordered = [node for node in nodes if not node.same]
    for index, node in enumerate(ordered):  # The loop appends to `ordered`.
        node.index = index
        for user in users[id(node)]:
            waiting[id(user)] -= 1
            if not waiting[id(user)]:
                ordered.append(user)
    if len(ordered) < len(nodes):
        raise InvalidInput("The schema has a circular reference.")
    return ordered


def _bound_references(nodes: Sequence[SchemaNode]) -> None:
    """Raise `InvalidInput` if the references of a schema expand to too many others."""
    followed: list[int] = []
    for node in nodes:
        count = len(node.references) + sum(followed[inner.index] for inner in node.same)
        if count > MAX_EXPANDED_REFERENCES:
            raise InvalidInput(f"The schema's references expand to more than {MAX_EXPANDED_REFERENCES:,} references.")
        followed.append(count)
