"""A check of schemathesis': what is valid by the document is not refused for its shape.

Its own `positive_data_acceptance` takes any 400 for such a refusal. Some are not: what is stored, or what time it is,
may speak against a request, and a few rules can't be said in JSON Schema. Here are all of them, by operation and place.
"""

from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, Response

SHAPE = (400, 413, 415, 422)
REFUSED_OTHERWISE: dict[str, set[str]] = {
    # What is stored. An account without a password needs an address with its first one.
    "changePassword": {"email"},
    "changeThread": {"activeLeaf"},
    "send": {"parentId", "attachments", "blobs", "options.model", "options.functions"},
    "regenerate": {"messageId", "options.model", "options.functions"},
    "decideApproval": {"editedArgs"},
    "listThreads": {"cursor"},
    "readBlobLines": {"after", "pattern"},
    "readOlderMessages": {"before"},
    "createTool": {"name", "parameters"},
    # What time it is.
    "createLink": {"expiresAt"},
    "createToken": {"expiresAt"},
}
"""Places that may be refused although they are valid; those of schemas and patterns have a grammar of their own."""
BY_CONTENT = {"uploadBlob": 415}
"""Operations that look into what is sent."""


@schemathesis.check
def accepted_for_shape(_: CheckContext, response: Response, case: "Case[Any]") -> None:
    """Raise if the request was valid by the document, and refused for how it looks."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in SHAPE:
        return
    operation = str(case.operation.definition.raw["operationId"])
    if BY_CONTENT.get(operation) == response.status_code:
        return
    problem = response.json()
    allowed = REFUSED_OTHERWISE.get(operation, set())
    places = [one["path"] for one in problem.get("errors", [])]
    refused = [place for place in places if not any(_within(place, one) for one in allowed)]
    assert places, f"valid by the document, but refused without a place: {problem}"
    assert not refused, f"valid by the document, but refused: {problem}"


def _within(place: str, allowed: str) -> bool:
    return place == allowed or place.startswith((f"{allowed}.", f"{allowed}["))
