"""The inputs of a run: its options, models and limits, its instructions, the conversation, and what was recalled."""

from collections.abc import Sequence

import msgspec

from khala.domain.chat import Message, StoredRunOptions
from khala.domain.parts import RecalledMemory
from khala.domain.preferences import FolderInstructions
from khala.memory.tool_router import ToolMeanings
from khala.models.model_names import ModelRef
from khala.runs.prompt_files import PromptFiles
from khala.runs.prompt_limits import PromptLimits


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one run. `candidates` are the models to call, in order."""

    options: StoredRunOptions
    candidates: Sequence[ModelRef]
    limits: PromptLimits
    files: PromptFiles
    system: str
    personal: str | None = None
    """The person's own instructions, which `system` contains."""
    folder: FolderInstructions | None = None
    """The person's instructions for the folder of the thread, which `system` contains."""
    memories: Sequence[RecalledMemory]
    history: Sequence[Message]
    tool_meanings: ToolMeanings
    """Compares tools with the conversation."""
    cooldown_seconds: float
    """Time between two steps."""
