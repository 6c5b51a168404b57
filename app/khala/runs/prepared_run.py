"""The inputs of a run: its options, models and limits, its instructions, the conversation, and what was recalled."""

from collections.abc import Sequence

import msgspec

from khala.domain.chat import Message, StoredRunOptions
from khala.domain.parts import RecalledMemory
from khala.domain.run_progress import RunProgress
from khala.models.model_names import ModelRef
from khala.runs.autopilot import Autopilot, RunConfig
from khala.runs.budget_meter import BudgetMeter
from khala.runs.model_turn import ModelTurn
from khala.runs.prompt_files import PromptFiles
from khala.runs.prompt_limits import PromptLimits
from khala.runs.tool_executor import ToolExecutor
from khala.store.runs.run_buffer import RunBuffer


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one run. `candidates` are the models to call, in order."""

    options: StoredRunOptions
    candidates: Sequence[ModelRef]
    limits: PromptLimits
    files: PromptFiles
    system: str
    personal: str | None = None
    memories: Sequence[RecalledMemory]
    history: Sequence[Message]
    cooldown_seconds: float

    def open_autopilot(
        self,
        buffer: RunBuffer,
        progress: RunProgress,
        meter: BudgetMeter,
        turn: ModelTurn,
        tool_executor: ToolExecutor,
        *,
        instructions: str = "",
        earlier_steps: int = 0,
    ) -> Autopilot:
        """The loop that answers, with further `instructions`. `earlier_steps` do not count towards its limit."""
        return Autopilot(
            buffer=buffer,
            progress=progress,
            meter=meter,
            turn=turn,
            tool_executor=tool_executor,
            limits=self.limits,
            files=self.files,
            config=RunConfig(
                system="\n\n".join(filter(None, (self.system, instructions))),
                personal=self.personal,
                memories=self.memories,
                cooldown_seconds=self.cooldown_seconds,
                earlier_steps=earlier_steps,
            ),
            options=self.options,
            history=self.history,
        )
