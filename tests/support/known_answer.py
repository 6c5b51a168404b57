"""What a client of each protocol has of an answer after the frames that it received."""

import json
from collections.abc import Iterable
from typing import Any


class KnownAnswer:
    """The text, the reasoning, the calls, the arguments that approvers edited, and the results of an answer.

    Raises `AssertionError` if a call or a result comes again and is another one.
    """

    def __init__(self, own_tools: Iterable[str] = ()) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: dict[str, Any] = {}
        self.edits: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._own_tools = frozenset(own_tools)

    @property
    def all(self) -> tuple[Any, ...]:
        """All that is known."""
        return self.text, self.reasoning, self.calls, self.edits, self.results

    def apply_parts(self, parts: Iterable[dict[str, Any]]) -> None:
        """Parts of the feed."""
        for part in parts:
            data = part["data"]
            match part["kind"]:
                case "text-delta":
                    self.text += data["text"]
                case "reasoning-delta":
                    self.reasoning += data["text"]
                case "tool-call":
                    self._call(data["toolCallId"], data["tool"], data["args"])
                case "tool-status" if data.get("args") is not None:
                    self._edit(data["toolCallId"], data["args"])
                case "tool-status" if data["state"] == "cancelled":
                    self._result(data["toolCallId"], None)
                case "tool-result":
                    output = data.get("output", data["summary"])
                    self._result(data["toolCallId"], _value(output) if data["ok"] else None)

    def apply_chunks(self, chunks: Iterable[dict[str, Any]]) -> None:
        """Chunks of the AI SDK's UI message stream."""
        for chunk in chunks:
            call_id = chunk.get("toolCallId", "")
            match chunk["type"]:
                case "text-delta":
                    self.text += chunk["delta"]
                case "reasoning-delta":
                    self.reasoning += chunk["delta"]
                case "tool-input-available" if call_id not in self.calls:
                    self._call(call_id, chunk["toolName"], chunk["input"])
                case "tool-input-available":
                    self._edit(call_id, chunk["input"])
                case "tool-output-available":
                    self._result(call_id, _value(chunk["output"]))
                case "tool-output-error" | "tool-output-denied":
                    self._result(call_id, None)

    def apply_agent_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Events of AG-UI."""
        names: dict[str, str] = {}
        for event in events:
            call_id = event.get("toolCallId", "")
            match event["type"]:
                case "TEXT_MESSAGE_CONTENT":
                    self.text += event["delta"]
                case "REASONING_MESSAGE_CONTENT":
                    self.reasoning += event["delta"]
                case "TOOL_CALL_START":
                    names[call_id] = event["toolCallName"]
                case "TOOL_CALL_ARGS":
                    self._call(call_id, names[call_id], json.loads(event["delta"]))
                case "CUSTOM" if event["name"] == "tool-call-args":
                    self._edit(event["value"]["toolCallId"], event["value"]["args"])
                case "TOOL_CALL_RESULT":
                    self._result(call_id, None if "metadata" in event else _value(event["content"]))

    def apply_response_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Events of OpenAI's Responses API."""
        items: dict[str, Any] = {}
        for event in events:
            match event["type"]:
                case "response.output_text.delta":
                    self.text += event["delta"]
                case "response.reasoning_text.delta":
                    self.reasoning += event["delta"]
                case "response.output_item.added":
                    items[event["item"]["id"]] = event["item"]
                case "response.mcp_call_arguments.done" | "response.function_call_arguments.done":
                    item = items[event["item_id"]]
                    self._call(item["call_id"], item["name"], json.loads(event["arguments"]))
                case "response.output_item.done" if event["item"]["type"] in ("mcp_call", "function_call"):
                    item = event["item"]
                    args = json.loads(item["arguments"])
                    if item.get("khala", {}).get("edited"):
                        self._edit(item["call_id"], args)
                    else:
                        self._call(item["call_id"], item["name"], args)
                    if item["type"] == "mcp_call":
                        self._result(item["call_id"], _value(item["output"]))

    def _call(self, call_id: str, tool: str, args: Any) -> None:
        assert self.calls.setdefault(call_id, (tool, args)) == (tool, args)

    def _edit(self, call_id: str, args: Any) -> None:
        assert self.edits.setdefault(call_id, args) == args

    def _result(self, call_id: str, output: Any) -> None:
        """The result of a call of the server's tools; None for one that failed, was denied or canceled."""
        if self.calls[call_id][0] not in self._own_tools:
            assert self.results.setdefault(call_id, output) == output


def _value(output: Any) -> Any:
    """An output, which some protocols send as a JSON text."""
    try:
        return json.loads(output) if isinstance(output, str) else output
    except json.JSONDecodeError:
        return output
