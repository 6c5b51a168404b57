"""Options of an executor."""

from collections.abc import Callable

import msgspec

from khala.domain.memories import Extraction
from khala.models.model_names import ModelRef


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an executor, as the operator set them."""

    models: tuple[ModelRef, ...]
    """The default model, then the models to fall back on."""
    system: str
    """The operator's instructions to the model."""
    allows_model: Callable[[str], bool] = bool
    """Whether a run may use this model, which its requester prefers."""
    concurrency: int = 200
    """Runs that are executed at once."""
    context_tokens: int | None = None
    """The maximum tokens of a prompt, also for models with a larger window. None: see `prompt_limits.PromptLimits`."""
    lease_seconds: float = 10.0
    """Time without a heartbeat after which another executor may take a run over."""
    sweep_interval_seconds: float = 1.0
    """Time between two searches for runs whose lease has lapsed."""
    grace_seconds: float = 20.0
    """Time that runs have to end when the process shuts down."""
    max_lost_executors: int = 8
    """Executors that a run may lose before it is given up. A run that kills its isolated process is ended at once."""
    max_isolated: int = 2
    """Runs that are executed in child processes at once."""
    cooldown_seconds: float = 0.1
    """Time between two steps of a run."""
    titles: bool = False
    """Whether titles of threads are requested."""
    demo_titles: bool = False
    """Whether they are also requested for answers of the demo model."""
    extraction: Extraction = "off"
    """Whether memories are extracted for people who have not decided."""
    extraction_delay_seconds: float = 20.0
    """Time after the begin of a run before which no memories are extracted."""
