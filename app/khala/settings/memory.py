"""Settings of the extraction of memories."""

from khala.domain.memories import Extraction
from khala.settings.fields import Number, SettingGroup, setting
from khala.settings.runs import ModelName


class ExtractionSettings(SettingGroup):
    """Memories that are extracted from what people say."""

    extraction: Extraction = setting(
        "KHALA_MEMORY_EXTRACTION",
        "off",
        "Whether memories are extracted after runs of people who have not decided: `ask` proposes them, `on` stores "
        "them.",
    )
    model: ModelName | None = setting(
        "KHALA_MEMORY_MODEL",
        None,
        "The model that extracts memories. A cheap one is enough.",
        shown_default="the model that the message asked for, else the default one",
    )
    delay_seconds: Number = setting(
        "KHALA_MEMORY_DELAY_SECONDS",
        20.0,
        "Time from the begin of a run to the extraction from its message, which waits for the end of the thread's "
        "runs, too. Runs within this time share one extraction.",
        unit="seconds",
        minimum=0,
        maximum=86_400,
    )
