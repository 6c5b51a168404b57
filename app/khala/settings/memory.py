"""Settings of the extraction of memories."""

from khala.domain.memories import Extraction
from khala.settings.fields import SettingGroup, setting
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
        shown_default="the first model that answers",
    )
