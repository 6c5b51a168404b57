"""The results of a client's own tools: they continue the answer that called the tools.

The answer is stored again, beside it, with the results, and the next run continues from that copy.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.api.chats.chat_ids import is_results_id, results_id
from khala.domain.chat import Message
from khala.domain.errors import PayloadTooLarge
from khala.domain.fold import Block, ToolBlock
from khala.domain.json_bodies import is_deeper
from khala.domain.parts import HANDED_OVER
from khala.store.postgres.database import Driver
from khala.store.runs import run_lookups
from khala.store.runs.run_lookups import FoundRun
from khala.store.threads import messages

MAX_CHAIN = 50
"""Answers that continue each other."""
MAX_SUMMARY_CHARACTERS = 120
MAX_RESULTS_BYTES = 1 << 20
"""Of one request. They become a message, which all readers of the thread get whole."""
MAX_OUTPUT_DEPTH = 128
"""Levels of nesting of a result. A response with more could fail to be encoded."""


class ClientResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call that the client has executed."""

    call_id: str
    ok: bool
    output: str


def check_size(results: Sequence[ClientResult]) -> None:
    """Raise `PayloadTooLarge` for results that are too large together. The rest of a request repeats the thread."""
    if sum(len(result.output.encode(errors="surrogatepass")) for result in results) > MAX_RESULTS_BYTES:
        raise PayloadTooLarge(f"The results of a request have at most {MAX_RESULTS_BYTES:,} bytes together.")


def read_output(text: str) -> object:
    """Return a result as the client has sent it: the model reads it as text. What is nested too deeply stays text."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict | list) and not is_deeper(value, MAX_OUTPUT_DEPTH) else text


def settle(content: Sequence[Block], results: Sequence[ClientResult]) -> tuple[Block, ...]:
    """Return the content of an answer with the results of its calls."""
    by_call = {result.call_id: result for result in results}
    return tuple(
        _settled(block, by_call[block.tool_call_id])
        if isinstance(block, ToolBlock) and block.tool_call_id in by_call
        else block
        for block in content
    )


def _settled(block: ToolBlock, result: ClientResult) -> ToolBlock:
    summary = " ".join(result.output[: 4 * MAX_SUMMARY_CHARACTERS].split())[:MAX_SUMMARY_CHARACTERS]
    state = "completed" if result.ok else "failed"
    return msgspec.structs.replace(block, state=state, output=result.output, summary=summary, duration_ms=None)


def handed_over(message: Message) -> list[str]:
    """Return the ids of the calls of the answer that the client has to execute."""
    blocks = [block for block in message.content or () if isinstance(block, ToolBlock)]
    return [block.tool_call_id for block in blocks if is_handed_over(block)]


async def newest_of_chain(driver: Driver, message: Message) -> UUID:
    """Return the last answer of the chain that begins with this one."""
    newest = message
    for _ in range(MAX_CHAIN):
        found = await _continuation(driver, newest)
        if found is None:
            break
        answers = await messages.read_messages(driver, newest.thread_id, [found.message_id])
        if found.message_id not in answers:
            break
        newest = answers[found.message_id]
    return newest.id


def active_branch(messages: Sequence[Message], leaf: UUID | None) -> list[tuple[Message, Message | None]]:
    """Return the messages up to the leaf, in order, as far as they are among these.

    Each comes with the answer of which it is the copy with results, if it is one.
    """
    by_id = {message.id: message for message in messages}
    branch: list[tuple[Message, Message | None]] = []
    while leaf is not None and leaf in by_id:
        message = by_id[leaf]
        branch.append((message, original_of(messages, message)))
        leaf = message.parent_id
    return branch[::-1]


def original_of(messages: Sequence[Message], message: Message) -> Message | None:
    """Return the answer of which this message is the copy with results, if it is one."""
    if message.role != "assistant" or message.run_id is not None:
        return None
    siblings = (other for other in messages if other.parent_id == message.parent_id and other.run_id is not None)
    return next((other for other in siblings if is_copy(message, other)), None)


async def run_of_copy(driver: Driver, settled: Message) -> FoundRun | None:
    """Return the run of the answer of which this is the copy with results."""
    for sibling in await messages.read_earlier_answers(driver, settled):
        if sibling.run_id is not None and is_copy(settled, sibling):
            return await run_lookups.by_id(driver, settled.thread_id, sibling.run_id)
    return None


def is_copy(settled: Message, answer: Message) -> bool:
    """Whether `settled` is the copy of this answer with the results of its calls, or of some of them."""
    unsettled = set(handed_over(settled))
    calls = [call_id for call_id in handed_over(answer) if call_id not in unsettled]
    return bool(calls) and is_results_id(settled.id, answer.thread_id, calls)


def is_handed_over(block: ToolBlock) -> bool:
    """Whether the client has to execute the call, and has sent no result yet."""
    return block.summary == HANDED_OVER and block.output is None


async def _continuation(driver: Driver, answer: Message) -> FoundRun | None:
    """Return the run that continues this answer with the results of its calls."""
    calls, thread_id = handed_over(answer), answer.thread_id
    if not calls:
        return None
    found = await run_lookups.first_answer(driver, thread_id, results_id(thread_id, calls))
    if found is not None:
        return found
    siblings = await messages.read_later_answers(driver, answer)
    copies = [sibling for sibling in siblings if sibling.run_id is None and is_copy(sibling, answer)]
    return await run_lookups.first_answer(driver, thread_id, copies[-1].id) if copies else None
