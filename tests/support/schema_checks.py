"""A check for schemathesis: the server does not refuse the form of requests that are valid by the OpenAPI document.

Its own `positive_data_acceptance` treats any 400 as such a refusal. But stored data or the current time can make a
request invalid, and JSON Schema cannot express a few rules. This module lists these cases by operation and place.
"""

from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, Response

REFUSAL_STATUSES = (400, 413, 415, 422)
OPTIONS = {
    f"options.{name}" for name in ("agent", "model", "functions", "responseFormat.schema", "toolChoice", "logprobs")
}
"""Options of a run that depend on the model, on the offered tools, or on what is stored, and schemas."""
REFUSED_OTHERWISE: dict[str, set[str]] = {
    # Depends on stored data. An account without a password needs an address with its first one.
    "changePassword": {"email"},
    "changeThread": {"activeLeaf"},
    # An account has a name of its own.
    "send": {"parentId", "attachments", "blobs", "text", "sendAt", "after", "authorName", *OPTIONS},
    "appendMessages": {"parentId", "blobs", "messages"},
    # Cron expressions and names of time zones have their own grammar, and some fields exclude others.
    "createSchedule": {"text", "threadId", "at", "cron", "timeZone", *OPTIONS},
    "changeSchedule": {"text", "at", "cron", "timeZone", "agent", *OPTIONS},
    "previewSchedule": {"cron", "timeZone"},
    "listSchedules": {"cursor"},
    "regenerate": {"messageId", *OPTIONS},
    "decideApproval": {"editedArgs"},
    "listThreads": {"cursor"},
    "search": {"cursor"},
    "readBlobLines": {"after", "pattern"},
    "readOlderMessages": {"before"},
    "createTool": {"name", "parameters"},
    "changePreferences": {"model"},
    # Push services of this server, and keys of the length and the curve that Web Push prescribes.
    "subscribeToPush": {"endpoint", "keys"},
    "createAgent": {"name", "model", "fallbacks"},
    "changeAgent": {"model", "fallbacks"},
    "changeFolder": {"agent"},
    # A name may have no character that is shown.
    "uploadFolderFile": {"file"},
    # Agents and other steps may not exist, or depend on each other. Documents have their own grammar.
    "createPlan": {"steps", "config.agents"},
    "importPlan": {"document", "config.agents"},
    "draftPlan": {"config.agents", *OPTIONS},
    "changePlan": {"agent", "config.agents"},
    "changePlanIterations": {"by"},
    "editPlan": {"add", "change", "remove", "order"},
    "listPlans": {"cursor"},
    # Depends on the network. A replay needs a time or a thread, and a revision is one of a thread.
    "createWebhook": {"url"},
    "changeWebhook": {"url"},
    "replayWebhook": {"since", "threadId"},
    # A share link opens its own thread only.
    "readChat": {"id"},
    "stopChat": {"id"},
    "stopAgent": {"id"},
    # Depends on the current time.
    "createMemory": {"expiresAt"},
    "correctMemory": {"expiresAt"},
    "createLink": {"expiresAt"},
    "createToken": {"expiresAt"},
}
"""Places that may be refused although they are valid. Schemas and patterns have their own grammar."""
BY_CONTENT = {"uploadBlob": 415, "uploadFolderFile": 415}
"""Operations that inspect the content, and the status of their refusal."""
EMPTY = "The file is empty."
"""Their refusal of a body without any byte, which JSON Schema cannot express for a binary body."""


@schemathesis.check
def accepted_for_shape(_: CheckContext, response: Response, case: "Case[Any]") -> None:
    """Raise if the request was valid by the document, and its form was refused."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in REFUSAL_STATUSES:
        return
    operation = str(case.operation.definition.raw["operationId"])
    if BY_CONTENT.get(operation) == response.status_code:
        return
    problem = response.json()
    if operation in BY_CONTENT and problem["detail"] == EMPTY:
        return
    allowed = REFUSED_OTHERWISE.get(operation, set())
    places = [error["path"] for error in problem.get("errors", [])]
    refused = [place for place in places if not any(_within(place, permitted) for permitted in allowed)]
    assert places, f"valid by the document, but refused without a place: {problem}"
    assert not refused, f"valid by the document, but refused: {problem}"


def _within(place: str, allowed: str) -> bool:
    return place == allowed or place.startswith((f"{allowed}.", f"{allowed}["))
