"""Encodes the parts of a run as events of the Responses API, and as the response itself. Without I/O.

The events and their sequence numbers depend on the header and the parts alone, however the parts were committed. So
each replay of a response has the same events, byte by byte.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

from khala.api.openai.types import JsonObject
from khala.api.responses.input_items import RUN_CODE
from khala.api.responses.item_values import code_of, encode_arguments, encode_logprob, output_of, text_part
from khala.api.responses.response_header import ResponseHeader
from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    Compaction,
    Finish,
    Logprobs,
    MemoryRecall,
    Notice,
    Part,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
    without_failure_text,
)
from khala.domain.run_progress import REPROMPTED_NOTICE
from khala.domain.tools import SEPARATOR

OWN_LABEL = "khala"
"""The label of this server's own tools, as if they were those of an MCP server."""
CANCELED = "canceled"
LIMITS = {"length": "max_output_tokens"}
"""Finish reasons of a response that is incomplete."""
ERROR_CODES = {"rate_limited": "rate_limit_exceeded"}
"""OpenAI's codes of errors. It has no others that fit, and its types allow no other codes."""


class ResponseEncoder:
    """The response of one run, as far as its parts have been added. `sequence_number` is that of the next event."""

    def __init__(self, header: ResponseHeader) -> None:
        self._header = header
        self._events: list[JsonObject] = []
        self._items: list[JsonObject] = []
        self._open: tuple[str, int] | None = None
        self._texts: list[str] = []
        self._held: list[str] = []
        self._logprobs: list[JsonObject] = []
        self._calls: dict[str, int] = {}
        self._failure: RunFailure | None = None
        self._completed_at: int | None = None
        self.finish: Finish | None = None
        self.sequence_number = 0

    def start(self) -> list[JsonObject]:
        """Return the first events of every stream of this response."""
        self._events = []
        self._emit("response.created", response=self.response())
        self._emit("response.in_progress", response=self.response())
        return self._events

    def add(self, parts: Sequence[Part], arguments: Mapping[int, str]) -> list[JsonObject]:
        """Add the next parts, and return their events.

        `arguments` are those that were too large for a part, as JSON, by the part's seq.
        """
        self._events = []
        for part, data in without_failure_text(parts):
            self._add(data, part.created_at, arguments.get(part.seq))
        return self._events

    @property
    def is_in_message(self) -> bool:
        """Whether more text only appends to the open message. Then its event follows from the number and the text."""
        return self._open is not None and self._open[0] == "message" and not self._header.holds

    def text_event(self, text: str) -> JsonObject:
        """Return the next event, which appends this text to the open message."""
        assert self._open is not None
        place = self._place(self._open[1]) | {"content_index": 0, "delta": text}
        return {
            "type": "response.output_text.delta",
            "sequence_number": self.sequence_number,
            **place,
            "logprobs": [],
        }

    def add_text(self, text: str) -> None:
        """Add text to the open message, whose event is known."""
        self._texts.append(text)
        self.sequence_number += 1

    def response(self, status: str | None = None) -> JsonObject:
        """Return the response so far, with this status if the run has not ended."""
        used = self.finish and self.finish.usage
        usage = used and {
            "input_tokens": used.input_tokens,
            "input_tokens_details": {
                "cached_tokens": (self.finish and self.finish.cached_tokens) or 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"reasoning_tokens": (self.finish and self.finish.reasoning_tokens) or 0},
            "total_tokens": used.input_tokens + used.output_tokens,
        }
        reason = LIMITS.get(self.finish.reason) if self.finish else None
        return {
            **self._header.fields,
            "status": self.status or status or "in_progress",
            "completed_at": self._completed_at,
            "error": self._error(),
            "incomplete_details": reason and {"reason": reason},
            "output": [*self._items],
            "usage": usage,
            "khala": self._header.khala | ({"errorCode": self._failure.code} if self._failure else {}),
        }

    @property
    def holds_text(self) -> bool:
        """Whether there is text that is sent when it has been checked."""
        return bool(self._held)

    @property
    def holds_edit(self) -> bool:
        """Whether an approver edited the arguments of a call that has not ended: the events of its end have them."""
        return any("edited" in self._items[index].get("khala", {}) for index in self._calls.values())

    @property
    def status(self) -> str | None:
        """The final status; None if the run has not ended."""
        if self.finish is None:
            return None
        if self._failure is not None:
            return "failed"
        if self.finish.reason == CANCELED:
            return "cancelled"
        return "incomplete" if self.finish.reason in LIMITS else "completed"

    @property
    def failure(self) -> tuple[str, str] | None:
        """The code and the message of the run's error, if it has failed or was canceled."""
        if self._failure is not None:
            return self._failure.code, self._failure.message
        return (CANCELED, "This response was canceled.") if self.status == "cancelled" else None

    def error_event(self, code: str, message: str) -> JsonObject:
        """Return the last event of a stream that cannot continue, while the run does."""
        self._events = []
        self._emit("error", code=code, message=message, param=None)
        return self._events[0]

    def _error(self) -> JsonObject | None:
        if self._failure is None:
            return None
        return {
            "code": ERROR_CODES.get(self._failure.code, "server_error"),
            "message": self._failure.message,
        }

    def _add(self, data: PartData, at: datetime, loaded: str | None) -> None:
        match data:
            case TextDelta(text=text) if text:
                self._held.append(text)
                if not self._header.holds:
                    self._flush()
            case ReasoningDelta(text=text) if text:
                self._append("reasoning", text)
            case Logprobs():
                self._logprobs += map(encode_logprob, data.tokens)
            case Notice(code=code) if code == FORMAT_REPAIR_NOTICE:
                self._held.clear()
                self._logprobs = []
            case Notice(code=code) if code == REPROMPTED_NOTICE:
                self._flush()
                self._close()
            case Step():
                self._flush()
                self._close()
            case ToolCall():
                self._call(data, loaded)
            case ToolStatus() if data.tool_call_id in self._calls:
                self._update_call(data, self._calls[data.tool_call_id], loaded)
            case ToolResult() if data.tool_call_id in self._calls:
                self._end_call(data, self._calls.pop(data.tool_call_id))
            case RunFailure():
                self._failure = data
            case Finish():
                self._finish(data, at)
            case (
                TextDelta()
                | ReasoningDelta()
                | Notice()
                | ToolStatus()
                | ToolResult()
                | Compaction()
                | MemoryRecall()
                | Route()
            ):
                pass
            case _:
                assert_never(data)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self.sequence_number, **fields})
        self.sequence_number += 1

    def _add_item(self, prefix: str, kind: str, **fields: Any) -> int:
        index = len(self._items)
        item = {"id": f"{prefix}_{self._header.run_id.hex}_{index}", "type": kind, **fields}
        self._items.append(item)
        self._emit("response.output_item.added", output_index=index, item=item)
        return index

    def _replace_item(self, index: int, **changes: Any) -> None:
        """Change an item. Events keep the item as it was."""
        self._items[index] = self._items[index] | changes

    def _end_item(self, index: int, **changes: Any) -> None:
        self._replace_item(index, **changes)
        self._emit("response.output_item.done", output_index=index, item=self._items[index])

    def _place(self, index: int) -> JsonObject:
        return {"item_id": self._items[index]["id"], "output_index": index}

    def _flush(self) -> None:
        held, self._held = self._held, []
        for text in held:
            self._append("message", text)

    def _append(self, kind: str, text: str) -> None:
        """Append text to the open item, or to a new one of this kind."""
        if self._open is None or self._open[0] != kind:
            self._close()
            self._open = kind, self._begin_message() if kind == "message" else self._begin_reasoning()
        if kind == "message":
            self._events.append(self.text_event(text))
            self.add_text(text)
        else:
            self._texts.append(text)
            place = self._place(self._open[1]) | {"content_index": 0, "delta": text}
            self._emit("response.reasoning_text.delta", **place)

    def _begin_message(self) -> int:
        index = self._add_item("msg", "message", status="in_progress", role="assistant", content=[])
        self._emit("response.content_part.added", **self._place(index), content_index=0, part=text_part("", []))
        return index

    def _begin_reasoning(self) -> int:
        index = self._add_item("rs", "reasoning", status="in_progress", summary=[], content=[])
        part = {"type": "reasoning_text", "text": ""}
        self._emit("response.content_part.added", **self._place(index), content_index=0, part=part)
        return index

    def _close(self, status: str = "completed") -> None:
        """End the open item."""
        if self._open is None:
            return
        (kind, index), text = self._open, "".join(self._texts)
        place = self._place(index) | {"content_index": 0}
        if kind == "message":
            part = text_part(text, self._logprobs)
            self._emit("response.output_text.done", **place, text=text, logprobs=self._logprobs)
            self._logprobs = []
        else:
            part = {"type": "reasoning_text", "text": text}
            self._emit("response.reasoning_text.done", **place, text=text)
        self._emit("response.content_part.done", **place, part=part)
        self._end_item(index, status=status, content=[part])
        self._open, self._texts = None, []

    def _call(self, call: ToolCall, loaded: str | None) -> None:
        self._close()
        text = loaded if loaded is not None else encode_arguments(call.args)
        if call.tool in self._header.functions:
            self._function_call(call, text)
        elif call.tool == RUN_CODE:
            self._calls[call.tool_call_id] = self._code_call(call, text)
        else:
            self._calls[call.tool_call_id] = self._mcp_call(call, text)

    def _function_call(self, call: ToolCall, text: str) -> None:
        index = self._add_item(
            "fc", "function_call", status="in_progress", call_id=call.tool_call_id, name=call.tool, arguments=""
        )
        place = self._place(index)
        self._emit("response.function_call_arguments.delta", **place, delta=text)
        self._emit("response.function_call_arguments.done", **place, name=call.tool, arguments=text)
        self._end_item(index, status="completed", arguments=text)

    def _code_call(self, call: ToolCall, text: str) -> int:
        code = code_of(text)
        container = f"cntr_{self._header.run_id.hex}"
        index = self._add_item(
            "ci",
            "code_interpreter_call",
            status="in_progress",
            call_id=call.tool_call_id,
            container_id=container,
            code="",
            outputs=None,
        )
        place = self._place(index)
        self._emit("response.code_interpreter_call.in_progress", **place)
        self._emit("response.code_interpreter_call_code.delta", **place, delta=code)
        self._emit("response.code_interpreter_call_code.done", **place, code=code)
        self._replace_item(index, code=code)
        return index

    def _mcp_call(self, call: ToolCall, text: str) -> int:
        label, separator, name = call.tool.partition(SEPARATOR)
        label, name = (label, name) if separator else (OWN_LABEL, call.tool)
        index = self._add_item(
            "mcp",
            "mcp_call",
            status="in_progress",
            call_id=call.tool_call_id,
            server_label=label,
            name=name,
            arguments="",
            approval_request_id=None,
            output=None,
            error=None,
        )
        place = self._place(index)
        self._emit("response.mcp_call.in_progress", **place)
        self._emit("response.mcp_call_arguments.delta", **place, delta=text)
        self._emit("response.mcp_call_arguments.done", **place, arguments=text)
        self._replace_item(index, arguments=text)
        return index

    def _update_call(self, status: ToolStatus, index: int, loaded: str | None) -> None:
        if status.args is not None or loaded is not None:
            self._edit_call(index, encode_arguments(status.args) if loaded is None else loaded)
        item = self._items[index]
        if status.state == "cancelled":
            self._end_item(self._calls.pop(status.tool_call_id), status="incomplete")
        elif status.state == "running" and item["type"] == "code_interpreter_call" and item["status"] == "in_progress":
            self._replace_item(index, status="interpreting")
            self._emit("response.code_interpreter_call.interpreting", **self._place(index))

    def _edit_call(self, index: int, text: str) -> None:
        """Replace the arguments by those that the approver edited. OpenAI's protocol has no field that says so."""
        is_code = self._items[index]["type"] == "code_interpreter_call"
        changed = {"code": code_of(text)} if is_code else {"arguments": text}
        self._replace_item(index, **changed, khala={"edited": True})

    def _end_call(self, result: ToolResult, index: int) -> None:
        output = output_of(result)
        status = "completed" if result.ok else "failed"
        if self._items[index]["type"] == "code_interpreter_call":
            self._emit("response.code_interpreter_call.completed", **self._place(index))
            self._end_item(index, status=status, outputs=[{"type": "logs", "logs": output}])
            return
        self._emit(f"response.mcp_call.{status}", **self._place(index))
        if result.ok:
            self._end_item(index, status=status, output=output)
        else:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output}]}
            self._end_item(index, status=status, error=error)

    def _finish(self, finish: Finish, at: datetime) -> None:
        self._flush()
        self.finish = finish
        is_whole = self.status == "completed"
        self._close("completed" if is_whole else "incomplete")
        for index in self._calls.values():
            self._end_item(index, status="incomplete")
        self._calls = {}
        self._completed_at = int(at.timestamp()) if is_whole else None
        # OpenAI's clients know no event for a response that was canceled.
        kind = "failed" if self.status == "cancelled" else self.status
        self._emit(f"response.{kind}", response=self.response())
