"""Assembles the tool calls of an answer from their deltas."""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import msgspec

from khala.models import tool_arguments
from khala.models.port import ToolUse

MAX_CALLS = 1024
MAX_ARGUMENT_CHARACTERS = 16 << 20
"""Characters of the arguments of all calls together."""


class FunctionDelta(msgspec.Struct):
    """An addition to a tool call: its name, and the next characters of its arguments, or all of them as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCallDelta(msgspec.Struct):
    """An addition to the tool call with this index."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ToolCallLimitError(ValueError):
    """The tool calls of an answer exceed a limit."""


class _Call:
    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []


class ToolCallAssembly:
    """Takes deltas in the order in which they arrive."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._size = 0

    def __bool__(self) -> bool:
        """Whether a call has begun."""
        return bool(self._calls)

    def add(self, deltas: Iterable[ToolCallDelta]) -> None:
        """Add these deltas. Raises `ToolCallLimitError`."""
        for delta in deltas:
            call = self._find_or_begin(delta)
            if delta.function is not None:
                self._extend(call, delta.function)

    def uses(self) -> Iterator[ToolUse]:
        """The tool calls, with ids that are unique in this answer. Calls without a name are left out."""
        seen = {""}
        for index, call in enumerate(call for call in self._calls if call.name):
            args, problem = tool_arguments.decode("".join(call.arguments))
            use_id = call.id or f"call_{uuid4().hex}"
            while use_id in seen:
                use_id = f"{use_id}-{index}"
            seen.add(use_id)
            yield ToolUse(id=use_id, name=call.name, args=args, problem=problem)

    def _find_or_begin(self, delta: ToolCallDelta) -> _Call:
        """The call to which a delta belongs.

        Some servers send no index, and some send the same index for all calls. There, a different id begins a new call.
        """
        index = delta.index if delta.index is not None else self._calls[-1].index if self._calls else 0
        call = self._by_index.get(index)
        if call is None or (delta.id and call.id and delta.id != call.id):
            call = self._begin(index, delta.id or "")
        call.id = call.id or delta.id or ""
        return call

    def _begin(self, index: int, call_id: str) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise ToolCallLimitError(f"More than {MAX_CALLS} tool calls.")
        call = self._by_index[index] = _Call(index, call_id)
        self._calls.append(call)
        return call

    def _extend(self, call: _Call, function: FunctionDelta) -> None:
        given = function.arguments
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode() if given is not None else ""
        self._size += len(text) + len(function.name or "")
        if self._size > MAX_ARGUMENT_CHARACTERS:
            raise ToolCallLimitError(f"Tool calls of more than {MAX_ARGUMENT_CHARACTERS} characters.")
        call.name += function.name or ""
        if text:
            call.arguments.append(text)
