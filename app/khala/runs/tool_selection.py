"""Selects the tools of a run's prompts: all of them, or the relevant ones and `find_tools` if there are many."""

from collections.abc import Sequence

from khala.domain.chat import Message, RunOptions
from khala.domain.fold import ToolBlock, text_of, without_replaced_text
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.run_progress import RunProgress
from khala.domain.tool_relevance import FIND_TOOLS, MAX_FOUND_TOOLS, MAX_RELEVANT_TOOLS, matching_tools, relevant_tools
from khala.domain.tools import ToolSpec
from khala.memory.tool_router import ToolMeanings
from khala.runs.prompt import ToolOffer
from khala.tools import find_tools

RELEVANT_MESSAGES = 3
"""The newest messages with which tools are compared, because a question such as "Yes, do it" names none. The newest is
the first, because only the beginning of a long text counts."""
MAX_MESSAGE_CHARACTERS = 2000
"""Characters of each of these messages."""


class ToolSelection:
    """Selects tools for one run: by words, and by meaning where `meanings` knows it.

    `reads_blobs`: the run has files that the model may have to read by `read_blob`.
    """

    def __init__(
        self,
        history: Sequence[Message],
        progress: RunProgress,
        options: RunOptions,
        meanings: ToolMeanings,
        *,
        reads_blobs: bool = False,
    ) -> None:
        self._progress = progress
        self._meanings = meanings
        self._text = "\n".join(
            text_of(without_replaced_text(message.content or ()))[:MAX_MESSAGE_CHARACTERS]
            for message in history[: -RELEVANT_MESSAGES - 1 : -1]
        )
        used = (block for message in history for block in message.content or () if isinstance(block, ToolBlock))
        self._pinned = {
            *(block.tool for block in used),
            *(function.name for function in options.functions),
            *(("read_blob",) if reads_blobs else ()),
            *(pattern for pattern in options.tools or () if not set(pattern) & set("*?[")),
        }

    async def select(self, specs: Sequence[ToolSpec], max_tokens: float) -> ToolOffer:
        """The tools for the next prompt; their definitions take at most `max_tokens`.

        Pinned are the client's own tools, those that the run's options name, that this thread has called before, and
        that `find_tools` has found in this run.
        """
        if len(specs) <= MAX_RELEVANT_TOOLS:
            return ToolOffer(specs=specs, max_tokens=max_tokens)
        called = {call.tool for call in self._progress.calls}
        pinned = {FIND_TOOLS, COMPLETE_STEP, *self._pinned, *called, *await self._found(specs)}
        meaning = await self._meanings(self._text, [spec for spec in specs if spec.name not in pinned])
        chosen = relevant_tools(self._text, specs, pinned, meaning=meaning)
        ranks = {spec.name: rank for rank, spec in enumerate(chosen)}
        return ToolOffer(
            specs=[spec for spec in specs if spec.name in ranks],
            ranks=ranks,
            max_tokens=max_tokens,
            unrelated=[spec for spec in specs if spec.name not in ranks],
            by="words" if meaning is None else "meaning",
        )

    async def _found(self, specs: Sequence[ToolSpec]) -> set[str]:
        """The tools that `find_tools` has found. A search whose output is not in its part is repeated."""
        found: set[str] = set()
        for call in self._progress.calls:
            query = (call.args or {}).get("query")
            if call.tool != FIND_TOOLS or call.result is None or not isinstance(query, str):
                continue
            names = find_tools.found_names(call.result.output)
            if names is None:
                others = [spec for spec in specs if spec.name != FIND_TOOLS]
                meaning = await self._meanings(query, others)
                names = [spec.name for spec in matching_tools(query, others, MAX_FOUND_TOOLS, meaning)]
            found.update(names)
        return found
