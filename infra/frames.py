"""Generates the types of the TypeScript client, `frames.ts` in `app/clients/typescript/client/src`, from wire structs.

With `--check` it writes nothing, and fails if the file is out of date.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

import msgspec

from khala.api import types as shared_types
from khala.api.accounts import types as accounts_types
from khala.api.agents import types as agents_types
from khala.api.http import problem_details
from khala.api.imports import types as imports_types
from khala.api.memories import types as memories_types
from khala.api.operations import types as operations_types
from khala.api.plans import types as plans_types
from khala.api.runs import types as runs_types
from khala.api.schedules import types as schedules_types
from khala.api.sharing import types as sharing_types
from khala.api.threads import types as threads_types
from khala.api.tools import connections as connections_types
from khala.api.tools import types as tools_types
from khala.api.webhooks import types as webhooks_types
from khala.blobs import blob_reader, line_views
from khala.domain import (
    access,
    accounts,
    agents,
    budgets,
    chat,
    context,
    fold,
    frames,
    generation,
    memories,
    oauth,
    parts,
    run_estimates,
    schedules,
    search_matches,
    search_results,
    thread_changes,
)
from khala.domain.plans import config_changes, plan, views
from khala.domain.tools import ToolRule
from khala.store.accounts import audit
from khala.store.budgets import usage_receipts
from khala.store.tools import approvals, user_tools
from khala.tools.mcp.accounts import connection_results
from khala.tools.repositories import LoadedRepository
from khala.tools.repositories.archive_reader import SkippedFiles

TARGET = Path(__file__).parent.parent / "app/clients/typescript/client/src/frames.ts"
WIDTH = 120
HEAD = "// Written by infra/frames.py from the server's own structs; change those, and run it again.\n"

Struct = type[msgspec.Struct]

STATE: dict[str, Struct] = {
    "BlobRef": parts.BlobRef, "Usage": parts.TokenUsage, "Finish": parts.Finish, "Thread": chat.Thread,
    "Message": chat.Message, "ThreadListEntry": chat.ThreadListEntry, "Run": chat.Run, "Receipt": chat.Receipt,
    "Snapshot": thread_changes.Snapshot, "Delta": thread_changes.Delta, "RecalledMemory": parts.RecalledMemory,
    "LikelyAgent": parts.LikelyAgent, "LikelyToken": parts.LikelyToken, "TokenLogprob": parts.TokenLogprob,
    "StepRef": chat.StepRef, "PlanEntry": views.PlanEntry,
    "StepProgress": views.StepProgress, "PlanEventEntry": views.PlanEventEntry, "PlanCounts": plan.Counts,
    "PlanSpent": plan.Spent, "PlanBudget": plan.PlanBudget, "PlanGit": plan.PlanGit,
    "PlanConfig": plan.PlanConfig,
    "PlannedStep": plan.PlannedStep, "PlanDetail": views.PlanDetail, "StepDetail": views.StepDetail,
}  # fmt: skip
BLOCKS: dict[str, Struct] = {
    "TextBlock": fold.TextBlock, "NoticeBlock": fold.NoticeBlock, "ToolBlock": fold.ToolBlock,
    "CompactionBlock": fold.CompactionBlock, "FileBlock": fold.FileBlock, "DataBlock": fold.DataBlock,
}  # fmt: skip
PARTS: dict[str, Struct] = {kind.__name__: kind for kind in parts.KINDS.values() if kind is not parts.Finish}
FROM_CLIENTS: dict[str, Struct] = {
    "Subscribe": frames.Subscribe, "Unsubscribe": frames.Unsubscribe, "SetPresence": frames.SetPresence,
    "Watch": frames.Watch, "Unwatch": frames.Unwatch, "Authenticate": frames.Authenticate, "Ping": frames.Ping,
}  # fmt: skip
FROM_SERVERS: dict[str, Struct] = {
    "Hello": frames.Hello, "SnapshotFrame": frames.SnapshotFrame, "DeltaFrame": frames.DeltaFrame,
    "Gone": frames.GoneFrame, "Present": frames.PresenceFrame, "AccountFrame": frames.AccountFrame,
    "AccountDelta": frames.AccountDeltaFrame, "Authenticated": frames.Authenticated, "ErrorFrame": frames.ErrorFrame,
    "Pong": frames.Pong,
}  # fmt: skip
RENAMED_BODIES: dict[str, Struct] = {"FunctionTool": chat.ClientFunction, "NewMemory": memories_types.MemoryBody}
BODIES: dict[str, Struct] = RENAMED_BODIES | {
    struct.__name__: struct
    for struct in (
        chat.RunBudget, generation.ResponseFormat, generation.ToolChoice, chat.RunOptions,
        threads_types.NewThread, threads_types.ThreadChanges, threads_types.NewMessage,
        threads_types.AppendRequest, threads_types.AppendedMessage, threads_types.AppendedText,
        threads_types.AppendedFile, threads_types.AppendedData,
        threads_types.RegenerateRequest, runs_types.DecisionRequest, runs_types.CancelRequest,
        sharing_types.ReadPosition, sharing_types.ClaimRequest, sharing_types.ThreadClaim,
        sharing_types.ClaimsRequest, sharing_types.NewRole, sharing_types.NewLink, sharing_types.NewThreadToken,
        accounts_types.Registration, accounts_types.Login, accounts_types.NewPassword, accounts_types.AccountDeletion,
        accounts_types.ProfileChanges, accounts_types.NewToken,
        connections_types.NewConnection, tools_types.NewTool, tools_types.ToolDecision, tools_types.ToolRuleList,
        tools_types.NewRepository,
        agents_types.NewAgent, agents_types.AgentChanges, agents_types.RouteRequest, memories_types.MemoryChanges,
        memories_types.MemorySettingsBody, memories_types.ThreadMemoryBody,
        config_changes.PlanConfigChanges, plans_types.NewPlan, plans_types.ImportedPlan, plans_types.NewPlanDraft,
        schedules_types.NewSchedule, schedules_types.ScheduleEdit, schedules_types.FireRequest,
        plans_types.PauseRequest, plans_types.PlanDetailChanges, plans_types.IterationsChange, plans_types.PlanEdit,
        webhooks_types.NewWebhook, webhooks_types.WebhookChanges, webhooks_types.SecretRotation,
        webhooks_types.NewReplay,
    )
}  # fmt: skip
RENAMED_ANSWERS: dict[str, Struct] = {
    "SendResult": chat.SendResult, "AppendedMessages": chat.AppendedMessages,
    "ClaimResult": accounts.ClaimResult, "Link": accounts.ShareLink,
    "Token": accounts.ApiToken, "ClientGrant": oauth.ClientGrant,
    "Trace": audit.AuditEntry, "BlobLine": line_views.BlobLine,
    "ReadResult": blob_reader.ReadResult, "Used": budgets.BudgetUsage, "Rule": ToolRule,
    "Tool": tools_types.OfferedTool,
    "Model": operations_types.OfferedModel, "Models": operations_types.OfferedModels,
}  # fmt: skip
ANSWERS: dict[str, Struct] = RENAMED_ANSWERS | {
    struct.__name__: struct
    for struct in (
        threads_types.CreatedThread, approvals.Approval, sharing_types.ThreadAccess, accounts.Member,
        accounts.Invitation, sharing_types.CreatedLink, accounts.LinkedIdentity, accounts.User,
        accounts.ThreadToken, sharing_types.CreatedThreadToken,
        accounts_types.SignedInUser, accounts_types.SignedOut, accounts.Session, accounts_types.CreatedToken,
        accounts_types.SignInProvider, accounts_types.SignInMethods, user_tools.UserTool,
        runs_types.UsedMemory, runs_types.BlobLink, runs_types.ToolCallDetail, runs_types.PartPage,
        runs_types.RunCursor,
        SkippedFiles, LoadedRepository, tools_types.RepositoryProgress, tools_types.RepositoryLoaded,
        tools_types.RepositoryFailed,
        context.LeftOut, context.ContextSection, context.ContextCall, runs_types.RunContext,
        agents.Agent, agents_types.AgentLink, run_estimates.RunEstimate, agents_types.RoutePreview,
        memories.Memory, memories.MemorySettings, memories.ThreadMemorySettings,
        memories.MemoryProposal, usage_receipts.UsageReceipt, search_matches.Highlight, search_results.SearchHit,
        connection_results.AccountConnection, connections_types.ConnectionStart,
        plans_types.PlanWithSteps, plans_types.PlanDraftState, plans_types.PlanEventPage,
        imports_types.ImportedThread, imports_types.ImportCounts, imports_types.ImportProgress,
        imports_types.ImportEnded, imports_types.ImportFailed,
        schedules.Schedule, schedules_types.StartedBySchedule, schedules_types.SchedulePreview,
        webhooks_types.Webhook, webhooks_types.CreatedWebhook, webhooks_types.WebhookAttempt,
        webhooks_types.WebhookDelivery, webhooks_types.Replay,
        problem_details.FieldError, problem_details.Problem,
    )
}  # fmt: skip
GENERIC: dict[str, Struct] = {
    struct.__name__: struct for struct in (shared_types.Page, threads_types.OlderMessages, shared_types.Items)
}
SECTIONS: tuple[tuple[str, dict[str, Struct]], ...] = (
    ("State", STATE),
    ("Content", BLOCKS),
    ("Parts", PARTS),
    ("Frames of clients", FROM_CLIENTS),
    ("Frames of servers", {"Participant": frames.Participant} | FROM_SERVERS),
    ("What requests bring", BODIES),
    ("What answers carry", ANSWERS | GENERIC),
)

WORDS: dict[str, Sequence[str]] = {
    "Role": get_args(access.Role),
    "Scope": get_args(access.Scope),
    "MessageRole": get_args(chat.MessageRole),
    "MessageStatus": get_args(chat.MessageStatus),
    "RunStatus": get_args(chat.RunStatus),
    "ToolState": ("queued", "running", "completed", "failed", "blocked", "cancelled"),
    "FinishReason": ("stop", "length", "max_steps", "no_progress", "tool_calls", "budget", "canceled", "error"),
    "Code": tuple(problem_details.STATUS),
}
"""Unions of literals that get a type name."""

EXACTLY: dict[tuple[Struct, str], str] = {
    (fold.ToolBlock, "state"): "ToolState",
    (parts.ToolStatus, "state"): "ToolState",
    (parts.Finish, "reason"): "FinishReason",
    (chat.RunOptions, "max_steps"): "number",
    (frames.Participant, "state"): "Record<string, unknown>",
    (frames.AccountFrame, "whole"): "true",
}
"""Fields whose type in the protocol is narrower than that of the struct."""

PLAIN: dict[Any, str] = {
    str: "string", UUID: "string", datetime: "string", Decimal: "string", int: "number", float: "number",
    bool: "boolean", Any: "unknown", msgspec.Raw: "unknown", NoneType: "null",
}  # fmt: skip


def main() -> None:
    """Write the file, or see whether it is as it would be written."""
    text = written()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        sys.exit(f"{TARGET.name} is out of date: run `python infra/frames.py`.")


def written() -> str:
    """The whole file."""
    names = {struct: name for _, structs in SECTIONS for name, struct in structs.items()}
    unions = {
        "Content": [_union("Block", BLOCKS)],
        "Parts": _parts(names),
        "Frames of clients": [_union("ClientFrame", FROM_CLIENTS)],
        "Frames of servers": [_union("ServerFrame", FROM_SERVERS)],
    }
    words = [_union(name, map(_quoted, closed)) for name, closed in WORDS.items()]
    numbers = f"export const PROTOCOL = {frames.PROTOCOL};\nexport const SUBPROTOCOL = {_quoted(frames.SUBPROTOCOL)};\n"
    texts = [HEAD, numbers, "// Words\n", *words]
    for title, structs in SECTIONS:
        texts += [f"// {title}\n", *(_struct(*one, names) for one in structs.items()), *unions.get(title, [])]
    return "\n".join(texts)


def _parts(names: dict[Struct, str]) -> list[str]:
    """The union of all parts, by `kind`."""
    kinds = [f"PartOf<{_quoted(kind)}, {names[struct]}>" for kind, struct in parts.KINDS.items()]
    fields = [field for field in msgspec.structs.fields(parts.Part) if field.name not in ("kind", "data")]
    lines = [f"  {field.encode_name}: {_typed(field.type, names)};\n" for field in fields]
    head = f"{_doc(parts.Part)}export interface PartOf<Kind extends string, Data> {{\n  kind: Kind;\n  data: Data;\n"
    return [head + "".join(lines) + "}\n", _union("Part", kinds)]


def _struct(name: str, struct: Struct, names: dict[Struct, str]) -> str:
    config = struct.__struct_config__
    lines = [] if config.tag is None else [f"  {config.tag_field}: {_quoted(str(config.tag))};\n"]
    for field in msgspec.structs.fields(struct):
        optional = not field.required and config.omit_defaults
        exact = EXACTLY.get((struct, field.name)) or _typed(field.type, names, bare=optional and field.default is None)
        lines.append(f"  {field.encode_name}{'?' if optional else ''}: {exact};\n")
    generic = "<T>" if name in GENERIC else ""
    return f"{_doc(struct)}export interface {name}{generic} {{\n{''.join(lines)}}}\n"


def _typed(annotation: Any, names: dict[Struct, str], *, bare: bool = False) -> str:
    """The type in TypeScript. With `bare`, None is left out of the type, because the field is then absent."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _typed(arguments[0], names, bare=bare)
    if origin in (Union, UnionType):
        return _either(arguments, names, bare=bare)
    if origin is Literal:
        named = (name for name, words in WORDS.items() if tuple(words) == arguments)
        return next(named, " | ".join(map(_quoted, arguments)))
    if origin is dict:
        return f"Record<string, {_typed(arguments[1], names)}>"
    if origin in (tuple, list, set, frozenset, Sequence):
        inner = _typed(arguments[0], names)
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if isinstance(annotation, TypeVar):
        return annotation.__name__
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation is parts.Part:
        return "Part"
    return names[annotation]


def _either(arguments: Sequence[Any], names: dict[Struct, str], *, bare: bool) -> str:
    if set(arguments) == set(get_args(fold.Block)):
        return "Block"
    # If a field can be both unset and null, the two have different meanings: null stays in the type.
    absent = {msgspec.UnsetType} if msgspec.UnsetType in arguments else {NoneType} if bare else set()
    return " | ".join(_typed(one, names, bare=bare) for one in arguments if one not in absent)


def _union(name: str, members: Iterable[str]) -> str:
    listed = list(members)
    line = f"export type {name} = {' | '.join(listed)};\n"
    return line if len(line) <= WIDTH else f"export type {name} =\n  | " + "\n  | ".join(listed) + ";\n"


def _doc(struct: Struct) -> str:
    """The struct's docstring as a comment, with the names of the wire."""
    text = cleandoc(struct.__doc__ or "")
    for field in msgspec.structs.fields(struct):
        text = text.replace(f"`{field.name}`", f"`{field.encode_name}`")
    text = re.sub(r"(?<=[a-z])_([a-z])(?=[a-z_]*`)", lambda found: found[1].upper(), text).replace("None", "null")
    text = re.sub(r": see `app\.[a-z.]+`", "", text)
    lines = text.split("\n")
    if len(lines) == 1:
        return f"/** {text} */\n"
    return "/**\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"


def _quoted(word: str) -> str:
    return msgspec.json.encode(word).decode()


if __name__ == "__main__":
    main()
