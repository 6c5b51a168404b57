"""Asks what a request asks: its messages become a thread, or join one, and a run that answers is queued."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from khala.api.context import Context
from khala.api.openai import history as told
from khala.api.openai.completion_options import CompletionOptions
from khala.api.openai.history import Answered, File, History, Said, Turn
from khala.api.validation import check_message_text
from khala.blobs.content_type import ContentSniffer
from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.chat import SendResult
from khala.domain.errors import InvalidInput, KhalaError
from khala.domain.fold import Block, TextBlock, ToolBlock
from khala.store.runs import completion_requests
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.sharing import access
from khala.store.threads import conversation_imports, sends, threads
from khala.store.threads.conversation_imports import ConversationImport, ImportedMessage
from khala.store.threads.sends import SendRequest


async def ask(context: Context, caller: Caller, history: History, options: CompletionOptions) -> AcceptedRequest:
    """Queue the answer, or join the run that an equal request started."""
    request = options.identity
    if request is None:
        return AcceptedRequest(sent=await _ask(context, caller, history, options))
    joined = await completion_requests.join(context.db, request) if request.may_be_known else None
    if joined is not None:
        return joined
    try:
        return AcceptedRequest(sent=await _ask(context, caller, history, options), attempt=request.attempt)
    except KhalaError:
        # An equal request that came at the same time was faster; or this one was stored, and its commit went unheard.
        joined = await completion_requests.join(context.db, request)
        if joined is None:
            raise
        return joined


async def _ask(context: Context, caller: Caller, history: History, options: CompletionOptions) -> SendResult:
    """Store what is new of the conversation, and queue its answer."""
    last = history.turns[-1]
    if isinstance(last, Said):
        if not last.files and not last.text.strip():
            raise InvalidInput("A message needs text.", path="messages")
        check_message_text(last.text, may_be_empty=True)
    if options.thread_id is None:
        return await _anew(context, caller, history, options)
    if isinstance(last, Said):
        question = await _question(context, caller, options.thread_id, last, options)
        sent, _ = await sends.send(context.db, question, caller, context.limits.sends)
        return sent
    return await _come_back(context, caller, options.thread_id, history, options)


async def _anew(context: Context, caller: Caller, history: History, options: CompletionOptions) -> SendResult:
    """A thread of all messages."""
    thread_id = ids.new()
    if not any(isinstance(turn, Said) and turn.files for turn in history.turns):
        return await _begin(context, caller, thread_id, history, options)
    # Files are kept in a thread that is there; nobody knows of it yet, and nobody will if this fails.
    await threads.create(context.db, thread_id, caller, title=history.title, welcome="", lasts=options.lasts)
    try:
        return await _begin(context, caller, thread_id, history, options)
    except KhalaError:
        await threads.remove(context.db, thread_id, caller)
        raise


async def _begin(
    context: Context, caller: Caller, thread_id: UUID, history: History, options: CompletionOptions
) -> SendResult:
    *before, last = history.turns
    asks = isinstance(last, Said)
    system = [ImportedMessage(role="system", content=(TextBlock(text=history.system),))] if history.system else []
    earlier = [await _imported(context, caller, thread_id, turn) for turn in (before if asks else history.turns)]
    conversation = ConversationImport(
        title=history.title,
        history=[*system, *earlier],
        question=await _question(
            context, caller, thread_id, last if isinstance(last, Said) else Said(text=""), options
        ),
        asks=asks,
        lasts=options.lasts,
    )
    return await conversation_imports.start(context.db, conversation, caller, context.limits.sends)


async def _question(
    context: Context, caller: Caller, thread_id: UUID, said: Said, options: CompletionOptions
) -> SendRequest:
    return SendRequest(
        thread_id=thread_id,
        message_id=ids.new(),
        text=said.text,
        attachments=await _kept(context, caller, thread_id, said.files),
        options=options.run,
        request=options.identity,
    )


async def _come_back(
    context: Context, caller: Caller, thread_id: UUID, history: History, options: CompletionOptions
) -> SendResult:
    """Continue the newest answer with the results of its calls."""
    async with context.db.driver() as driver:
        waiting = await conversation_imports.find_waiting(driver, thread_id, caller, list(history.results))
    if waiting is None:
        raise InvalidInput("The thread's newest answer has made no such call.", path="messages")
    blocks = tuple(_settled(block, history.results) for block in waiting.content)
    settled = ImportedMessage(role="assistant", content=blocks)
    question = await _question(context, caller, thread_id, Said(text=""), options)
    return await conversation_imports.continue_answer(
        context.db, waiting, settled, question, caller, context.limits.sends
    )


def _settled(block: Block, results: Mapping[str, str]) -> Block:
    if isinstance(block, ToolBlock) and block.tool_call_id in results:
        return told.settled(block, results[block.tool_call_id])
    return block


async def _imported(context: Context, caller: Caller, thread_id: UUID, turn: Turn) -> ImportedMessage:
    if isinstance(turn, Answered):
        return ImportedMessage(role="assistant", content=turn.blocks)
    text = (TextBlock(text=turn.text),) if turn.text else ()
    return ImportedMessage(role="user", content=text, attachments=await _kept(context, caller, thread_id, turn.files))


async def _kept(context: Context, caller: Caller, thread_id: UUID, files: Sequence[File]) -> tuple[UUID, ...]:
    """Keep the files as uploads that wait for their message."""
    if files:
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.UPLOAD_FILE)
    return tuple([await _keep(context, caller, thread_id, file) for file in files])


async def _keep(context: Context, caller: Caller, thread_id: UUID, file: File) -> UUID:
    sniffer = ContentSniffer()
    sniffer.feed(file.data)
    media_type = sniffer.media_type(file.claimed)
    if media_type is None:
        raise InvalidInput("PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8 are taken.", path=file.path)
    async with context.blobs.service.spool(context.blobs.max_upload_bytes) as spool:
        await spool.write(file.data)
        kept = await context.blobs.service.put(
            spool,
            thread_id=thread_id,
            media_type=media_type,
            name=file.name or f"file.{media_type.rpartition('/')[2]}",
            author_id=caller.author_id,
            attached=False,
        )
    return kept.blob_id
