"""How an executor works."""

import msgspec

from khala.models.model_names import ModelRef


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an executor works. Times are seconds."""

    models: tuple[ModelRef, ...]
    """The default model, then those to fall back on."""
    system: str
    concurrency: int = 200
    context_tokens: int = 32_000
    """The most that a prompt may take, of models with a larger window too."""
    lease: float = 10.0
    """Time after which another executor takes a run whose executor is silent."""
    sweep: float = 1.0
    """Time between two looks for such runs."""
    grace: float = 20.0
    """Time that runs are given to end when the process is to stop."""
    attempts: int = 8
    """Executors that may be lost over the same run. A run that kills its isolated process ends at once."""
    isolated: int = 2
    """Runs that are executed in processes of their own at once."""
    cooldown: float = 0.1
    """Time between two rounds of tools."""
