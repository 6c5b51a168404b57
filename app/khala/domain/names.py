"""Names of people: one visible line without controls of the direction of text, so that no name imitates another."""

import re

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""Of terminals, lines and the direction of text, and what is invisible, but for U+200C and U+200D: emoji have them."""
_BLANKS = r"\s\u00ad\u115f\u1160\u200b-\u200f\u2060-\u2064\u2800\u3164\ufeff\uffa0"
ONE_LINE = rf"^[^{_CONTROLS}]*[^{_CONTROLS}{_BLANKS}][^{_CONTROLS}]*$(?!\n)"
"""The pattern of a line that is not blank."""
MAX_CLAIMED_CHARACTERS = 200


def claimed_name(claim: object) -> str | None:
    """The name in the claim of an identity provider, without characters that names may not have; None if it is blank.

    It has at most `MAX_CLAIMED_CHARACTERS` characters.
    """
    if not isinstance(claim, str):
        return None
    name = "".join(filter(str.isprintable, claim))[:MAX_CLAIMED_CHARACTERS].strip()
    return name if re.match(ONE_LINE, name) else None
