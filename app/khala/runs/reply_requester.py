"""Requests the replies of the model of one run: builds each prompt from the conversation and the steps so far.

The text of a reply is streamed into the answer. Older messages and steps become a summary if they do not fit.
"""

from collections.abc import Sequence

import msgspec

from khala.domain import autopilot
from khala.domain.generation import generation_of
from khala.domain.run_progress import RunProgress
from khala.domain.tools import ToolSpec
from khala.models.port import LanguageModel, Prompt
from khala.runs.budget_meter import BudgetMeter
from khala.runs.compaction import Compactor
from khala.runs.model_turn import BuiltPrompt, ModelDependencies, ModelReply, ModelTurn, RunOutcome
from khala.runs.prepared_run import PreparedRun
from khala.runs.prompt import FittedPrompt, PromptInput, fit
from khala.runs.prompt_items import PromptItems
from khala.runs.prompt_limits import PromptLimit, PromptTooLongError
from khala.runs.tool_selection import ToolSelection
from khala.store.runs.run_buffer import RunBuffer

TOOLS_SHARE = 0.1
"""Share of the affordable tokens that the descriptions of tools may take: each step of the run repeats them."""
TOO_LONG = "This conversation is longer than the limit of {limit:,} tokens of a prompt for this model."


class ReplyRequester:
    """Requests replies for one run."""

    def __init__(
        self,
        prepared: PreparedRun,
        buffer: RunBuffer,
        progress: RunProgress,
        meter: BudgetMeter,
        models: ModelDependencies,
    ) -> None:
        options = prepared.options
        self._prepared = prepared
        self._buffer = buffer
        self._progress = progress
        self._meter = meter
        self._turn = ModelTurn(
            buffer,
            meter,
            models,
            prepared.candidates,
            waits_for_limits=options.step is None,
            shortens=options.context_overflow == "shorten",
        )
        self._items = PromptItems()
        self._selection = ToolSelection(
            prepared.history,
            progress,
            options,
            prepared.tool_meanings,
            reads_blobs=prepared.files.of_folder.may_exist,
        )
        self._compactor = Compactor(self._turn, prepared.history, progress, prepared.limits)
        self._generation = generation_of(options)

    async def request(
        self, tools: Sequence[ToolSpec], *, instructions: str = "", prompt: str = ""
    ) -> ModelReply | RunOutcome:
        """The next reply, or the outcome of the run if no model gives one.

        `instructions` are added to those of the run. The model reads `prompt` last.
        """

        async def build(model: LanguageModel, max_tokens: int | None) -> BuiltPrompt:
            limit = await self._prepared.limits.of_model(model, max_tokens)
            content = await self._content(prompt)
            fitted = await self._fit(model, content, tools, limit, instructions)
            return BuiltPrompt(self._with_options(fitted.prompt), limit.record(fitted.sections, "answer"))

        reply = await self._turn.request(build, self._buffer.append_text)
        if isinstance(reply, ModelReply):
            self._progress.pending_text = reply.text
        return reply

    async def _content(self, instruction: str) -> PromptInput:
        prepared = self._prepared
        return PromptInput(
            history=prepared.history,
            progress=self._progress,
            memories=prepared.memories,
            files=await prepared.files.read(prepared.history),
            folder_files=await prepared.files.of_folder.read(),
            instruction=instruction,
            personal=prepared.personal,
            folder=prepared.folder,
            items=self._items,
        )

    async def _fit(
        self,
        model: LanguageModel,
        content: PromptInput,
        tools: Sequence[ToolSpec],
        limit: PromptLimit,
        instructions: str,
    ) -> FittedPrompt:
        """The prompt within the limit, after a summary of older messages and steps if there has to be one."""
        system = self._instructions(model, instructions)
        max_tokens = TOOLS_SHARE * self._meter.affordable_tokens(model.provider, model.name)
        offer = await self._selection.select(tools, max_tokens)

        def fit_now() -> FittedPrompt:
            return fit(
                content,
                system=system,
                tools=offer,
                limit=limit.tokens,
                token_counter=limit.counter,
                reads_tools=model.reads_tools,
            )

        fitted = fit_now()
        if fitted.dropped and self._prepared.options.context_overflow == "error":
            raise PromptTooLongError(TOO_LONG.format(limit=limit.tokens))
        if not fitted.dropped and not fitted.tight:
            return fitted
        summary = await self._compactor.summary(fitted, limit)
        if summary is None:
            return fitted
        self._buffer.append(summary)
        self._progress.apply(summary)
        return fit_now()

    def _with_options(self, fitted: Prompt) -> Prompt:
        options, generation = self._prepared.options, self._generation
        if not autopilot.must_call(options, self._progress.steps):
            generation = msgspec.structs.replace(generation, tool_choice=None)
        return msgspec.structs.replace(fitted, max_output_tokens=options.max_output_tokens, generation=generation)

    def _instructions(self, model: LanguageModel, instructions: str) -> str:
        """The instructions, with the format of the answer unless the provider enforces it.

        It cannot enforce the format of the rest of an answer.
        """
        texts = [self._prepared.system, instructions]
        requested = self._generation.json_format
        if requested is not None:
            continues = bool(self._progress.pending_text.strip())
            if requested.schema is None or continues or not model.enforces(requested.schema):
                texts.append(requested.instructions)
        return "\n\n".join(filter(None, texts))
