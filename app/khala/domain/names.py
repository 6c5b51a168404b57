"""Names of people: a line that is visible and reads in one direction, so that no name looks like another one by it."""

import re

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""Of terminals, of lines, and of the direction of text."""
_BLANKS = r"\s\u00ad\u115f\u1160\u200b-\u200f\u2060-\u2064\u2800\u3164\ufeff\uffa0"
ONE_LINE = rf"^[^{_CONTROLS}]*[^{_CONTROLS}{_BLANKS}][^{_CONTROLS}]*$(?!\n)"
"""The pattern of a line that is not blank."""
MAX_CLAIMED_CHARACTERS = 200


def claimed_name(claim: object) -> str | None:
    """The name that an identity provider gives, without what a name must not have, and cut; None if nothing is left."""
    if not isinstance(claim, str):
        return None
    name = "".join(filter(str.isprintable, claim))[:MAX_CLAIMED_CHARACTERS].strip()
    return name if re.match(ONE_LINE, name) else None
