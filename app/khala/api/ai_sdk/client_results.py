"""The answers that a message of the AI SDK consists of: those that continue each other with results of its tools.

For the AI SDK, the answers of such a chain are one message, whose id is that of the first.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from khala.api.ai_sdk.chunk_encoder import ChunkEncoder, StreamedRun, UiChunk
from khala.api.ai_sdk.types import ChatRequestPart
from khala.api.chats.client_results import MAX_CHAIN, ClientResult, is_handed_over, read_output, run_of_copy
from khala.api.validation import check_json
from khala.domain.fold import Block, ToolBlock
from khala.domain.parts import Part
from khala.store.postgres.database import Driver
from khala.store.runs.run_lookups import FoundRun
from khala.store.threads import messages


class EarlierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier answer of the same message, and the content with the results of its calls."""

    run: StreamedRun
    settled: tuple[Block, ...]

    def chunks(self, parts: Sequence[Part], arguments: Mapping[str, object]) -> list[UiChunk]:
        """Return the chunks of the answer and of the results, without the end of its run."""
        *chunks, _ = ChunkEncoder(self.run).add(parts, arguments)
        for block in self.settled:
            if isinstance(block, ToolBlock) and block.tool in self.run.functions and not is_handed_over(block):
                ended = {"toolCallId": block.tool_call_id}
                if block.state == "failed":
                    chunks.append({"type": "tool-output-error", **ended, "errorText": block.output})
                else:
                    chunks.append({"type": "tool-output-available", **ended, "output": read_output(block.output)})
        return chunks


def results_in(parts: Iterable[ChatRequestPart], path: str) -> list[ClientResult]:
    """Return the results that the client has added to the last step. Raises `InvalidInput`."""
    found: list[ClientResult] = []
    for part in parts:
        if part.type == "step-start":
            found = []
        elif part.tool_call_id and not part.provider_executed and part.state in ("output-available", "output-error"):
            ok = part.state == "output-available"
            check_json([part.output, part.error_text, part.tool_call_id], path)
            output = msgspec.json.encode(part.output).decode() if ok else part.error_text
            text = part.output if ok and isinstance(part.output, str) else output
            found.append(ClientResult(call_id=part.tool_call_id, ok=ok, output=text))
    return found


async def earlier_answers(driver: Driver, run: FoundRun) -> tuple[EarlierAnswer, ...]:
    """Return the answers of the run's message before it, the first one first; none if the run answers a question."""
    earlier: list[EarlierAnswer] = []
    for _ in range(MAX_CHAIN):
        known = await messages.read_messages(driver, run.thread_id, [run.user_message_id])
        settled = known.get(run.user_message_id)
        if settled is None or settled.role != "assistant":
            break
        original = await run_of_copy(driver, settled)
        if original is None:
            break
        run = original
        streamed = StreamedRun(
            thread_id=run.thread_id, run_id=run.id, message_id=run.message_id, functions=run.functions
        )
        earlier.insert(0, EarlierAnswer(run=streamed, settled=settled.content or ()))
    return tuple(earlier)
