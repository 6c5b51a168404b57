"""URI templates of resources: which URIs match, and the values of their variables. Matching takes linear time."""

import re
from urllib.parse import unquote

MAX_URI_CHARACTERS = 2_000
MAX_VARIABLES = 10
URI_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=.)")
VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
RESERVED_SCHEME = "khala:"
"""Begins the URIs of Khala's own resources."""


class UriTemplate:
    """A URI, or a template (RFC 6570) with variables: `{name}`, and at its end `{+name}`, which may contain slashes."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` for a text that is none."""
        self.text = text
        if URI_START.match(text) is None or not text.isascii() or any(character <= " " for character in text):
            raise ValueError(f"{text[:100]!r} is no URI: it needs a scheme, as in shop://orders, and no spaces.")
        if text.lower().startswith(RESERVED_SCHEME) or len(text) > MAX_URI_CHARACTERS:
            raise ValueError(f"{text[:100]}: a URI has at most {MAX_URI_CHARACTERS:,} characters, not khala: first.")
        pieces = VARIABLE.split(text)
        literals, kinds, self.variables = pieces[::3], pieces[1::3], tuple(pieces[2::3])
        if any("{" in literal or "}" in literal for literal in literals):
            raise ValueError(f"{text}: a variable is {{name}}, or {{+name}} at the end.")
        if len(set(self.variables)) < len(self.variables) or len(self.variables) > MAX_VARIABLES:
            raise ValueError(f"{text}: a URI has at most {MAX_VARIABLES} variables, each once.")
        if self.variables and (VARIABLE.search(text.partition(":")[0]) or "+" in kinds[:-1]):
            raise ValueError(f"{text}: only the last variable can have slashes, and none is in the scheme.")
        if not all(literals[1:-1]) or (kinds and kinds[-1] and literals[-1]):
            raise ValueError(f"{text}: a variable ends before the next character, so there must be one.")
        self._pattern = re.compile(_expression(literals, kinds))

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the variables in this URI; None if the template does not match."""
        found = self._pattern.fullmatch(uri) if len(uri) <= MAX_URI_CHARACTERS else None
        return None if found is None else dict(zip(self.variables, map(unquote, found.groups()), strict=True))


def _expression(literals: list[str], kinds: list[str]) -> str:
    """A variable ends at the first character that may follow it, so nothing is tried twice."""
    expression = re.escape(literals[0])
    for kind, following in zip(kinds, literals[1:], strict=True):
        ends = "" if kind else "/?#" + following[:1]
        value = f"[^{re.escape(ends)}]++" if ends else "(?s:.)++"
        expression += f"({value}){re.escape(following)}"
    return expression
