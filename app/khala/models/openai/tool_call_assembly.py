"""The tool calls of an answer, put together from their pieces."""

from collections.abc import Iterable, Iterator
from uuid import uuid4

import msgspec

from khala.models import tool_arguments
from khala.models.openai.chunks import CallPiece, FunctionPiece
from khala.models.port import ToolUse

MAX_CALLS = 1024
LONGEST_ARGUMENTS = 16 << 20
"""Characters of the arguments of all calls together."""


class TooManyCalls(ValueError):
    """An answer calls more than is read."""


class _Call:
    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []


class ToolCallAssembly:
    """Takes pieces in the order in which they come."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._size = 0

    def add(self, pieces: Iterable[CallPiece]) -> None:
        """Take more of the calls. Raises `TooManyCalls`."""
        for piece in pieces:
            call = self._of(piece)
            if piece.function is not None:
                self._extend(call, piece.function)

    def uses(self) -> Iterator[ToolUse]:
        """The tools that are called, under ids that are unique in this answer."""
        seen = {""}
        for place, call in enumerate(call for call in self._calls if call.name):
            args, problem = tool_arguments.read("".join(call.arguments))
            use_id = call.id or f"call_{uuid4().hex}"
            while use_id in seen:
                use_id = f"{use_id}-{place}"
            seen.add(use_id)
            yield ToolUse(id=use_id, name=call.name, args=args, problem=problem)

    def _of(self, piece: CallPiece) -> _Call:
        """The call that a piece belongs to.

        Some servers give no index, and some the same one to all calls; there another id begins another call.
        """
        index = piece.index if piece.index is not None else self._calls[-1].index if self._calls else 0
        call = self._by_index.get(index)
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = self._begin(index, piece.id or "")
        call.id = call.id or piece.id or ""
        return call

    def _begin(self, index: int, call_id: str) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise TooManyCalls(f"More than {MAX_CALLS} tool calls.")
        call = self._by_index[index] = _Call(index, call_id)
        self._calls.append(call)
        return call

    def _extend(self, call: _Call, function: FunctionPiece) -> None:
        given = function.arguments
        more = given if isinstance(given, str) else msgspec.json.encode(given).decode() if given is not None else ""
        self._size += len(more) + len(function.name or "")
        if self._size > LONGEST_ARGUMENTS:
            raise TooManyCalls(f"Tool calls of more than {LONGEST_ARGUMENTS} characters.")
        call.name += function.name or ""
        if more:
            call.arguments.append(more)
