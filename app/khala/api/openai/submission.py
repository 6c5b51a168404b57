"""Submits a completion request: stores its messages in a new or a given thread, and queues the run that answers."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from khala.api.agents.catalog import choose_agent, resolve_agent
from khala.api.context import Context
from khala.api.openai.completion_options import AGENT_HEADER, CompletionOptions
from khala.api.openai.history import AssistantTurn, AttachedFile, History, HistoryTurn, UserTurn, complete_call
from khala.api.validation import check_message_text
from khala.blobs.content_type import ContentSniffer
from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.agents import AUTO
from khala.domain.chat import RunOptions, SendResult
from khala.domain.errors import InvalidInput, KhalaError
from khala.domain.fold import Block, TextBlock, ToolBlock
from khala.store.runs import completion_requests
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.sharing import access
from khala.store.threads import conversation_imports, sends, threads
from khala.store.threads.conversation_imports import ConversationImport, ImportedMessage
from khala.store.threads.sends import SendRequest


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to answer."""

    context: Context
    caller: Caller
    history: History
    options: CompletionOptions

    async def submit(self) -> AcceptedRequest:
        """Queue the answer, or join the run that an equal request started. Raises the errors of sending."""
        identity = self.options.identity
        if identity is None:
            return AcceptedRequest(sent=await self._send())
        joined = await completion_requests.join(self.context.db, identity) if identity.may_be_known else None
        if joined is not None:
            return joined
        try:
            return AcceptedRequest(sent=await self._send(), attempt=identity.attempt)
        except KhalaError:
            # A concurrent equal request was faster, or this one was stored and its commit was not confirmed.
            joined = await completion_requests.join(self.context.db, identity)
            if joined is None:
                raise
            return joined

    async def _send(self) -> SendResult:
        """Store the new messages of the conversation, and queue the answer."""
        last = self.history.turns[-1]
        if isinstance(last, UserTurn):
            if not last.files and not last.text.strip():
                raise InvalidInput("A message needs text.", path="messages")
            check_message_text(last.text, may_be_empty=True)
        thread_id = self.options.thread_id
        if thread_id is None:
            return await self._create_thread()
        if isinstance(last, UserTurn):
            request = await self._send_request(thread_id, last)
            sent, _ = await sends.send(self.context.db, request, self.caller, self.context.limits.sends)
            return sent
        return await self._continue_answer(thread_id)

    async def _create_thread(self) -> SendResult:
        thread_id, db = ids.new(), self.context.db
        if not any(isinstance(turn, UserTurn) and turn.files for turn in self.history.turns):
            return await self._import_conversation(thread_id)
        # Files need an existing thread. If the import fails, the thread is removed before any client gets its id.
        title, lifetime = self.history.title, self.options.lifetime
        await threads.create(db, thread_id, self.caller, title=title, welcome="", lifetime=lifetime)
        try:
            return await self._import_conversation(thread_id)
        except KhalaError:
            await threads.remove(db, thread_id, self.caller)
            raise

    async def _import_conversation(self, thread_id: UUID) -> SendResult:
        *before, last = self.history.turns
        has_question = isinstance(last, UserTurn)
        instructions = self.history.system
        system = [ImportedMessage(role="system", content=(TextBlock(text=instructions),))] if instructions else []
        earlier = [await self._imported(thread_id, turn) for turn in (before if has_question else self.history.turns)]
        question = last if isinstance(last, UserTurn) else UserTurn(text="")
        conversation = ConversationImport(
            title=self.history.title,
            history=[*system, *earlier],
            question=await self._send_request(thread_id, question),
            has_question=has_question,
            lifetime=self.options.lifetime,
        )
        limits = self.context.limits.sends
        return await conversation_imports.start(self.context.db, conversation, self.caller, limits)

    async def _continue_answer(self, thread_id: UUID) -> SendResult:
        """Continue the newest answer with the results of its calls. The continued answer replaces it."""
        results = self.history.results
        async with self.context.db.driver() as driver:
            waiting = await conversation_imports.find_waiting(driver, thread_id, self.caller, list(results))
        if waiting is None:
            raise InvalidInput("The thread's newest answer has made no such call.", path="messages")
        blocks = tuple(_with_result(block, results) for block in waiting.content)
        completed = ImportedMessage(role="assistant", content=blocks)
        request = await self._send_request(thread_id, UserTurn(text=""))
        return await conversation_imports.continue_answer(
            self.context.db, waiting, completed, request, self.caller, self.context.limits.sends
        )

    async def _send_request(self, thread_id: UUID, turn: UserTurn) -> SendRequest:
        return SendRequest(
            thread_id=thread_id,
            message_id=ids.new(),
            text=turn.text,
            attachments=await self._store_files(thread_id, turn.files),
            options=await self._run_options(turn.text),
            request=self.options.identity,
        )

    async def _run_options(self, task: str) -> RunOptions:
        run = self.options.run
        if run.agent == AUTO:
            return await choose_agent(self.context, self.caller, run, task)
        return await resolve_agent(self.context, self.caller, run, path=AGENT_HEADER)

    async def _imported(self, thread_id: UUID, turn: HistoryTurn) -> ImportedMessage:
        if isinstance(turn, AssistantTurn):
            return ImportedMessage(role="assistant", content=turn.blocks)
        text = (TextBlock(text=turn.text),) if turn.text else ()
        attachments = await self._store_files(thread_id, turn.files)
        return ImportedMessage(role="user", content=text, attachments=attachments)

    async def _store_files(self, thread_id: UUID, files: Sequence[AttachedFile]) -> tuple[UUID, ...]:
        """Store the files as uploads of a message to be sent, and return the ids of their blobs."""
        if files:
            async with self.context.db.driver() as driver:
                await access.authorize(driver, thread_id, self.caller, Action.UPLOAD_FILE)
        return tuple([await self._store_file(thread_id, file) for file in files])

    async def _store_file(self, thread_id: UUID, file: AttachedFile) -> UUID:
        sniffer = ContentSniffer()
        sniffer.feed(file.data)
        media_type = sniffer.media_type(file.claimed_type)
        if media_type is None:
            raise InvalidInput("PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8 are accepted.", path=file.path)
        blobs = self.context.blobs
        async with blobs.service.spool(blobs.max_upload_bytes) as spool:
            await spool.write(file.data)
            stored = await blobs.service.put(
                spool,
                thread_id=thread_id,
                media_type=media_type,
                name=file.name or f"file.{media_type.rpartition('/')[2]}",
                author_id=self.caller.author_id,
                attached=False,
            )
        return stored.blob_id


def _with_result(block: Block, results: Mapping[str, str]) -> Block:
    if isinstance(block, ToolBlock) and block.tool_call_id in results:
        return complete_call(block, results[block.tool_call_id])
    return block
