"""Settings of the titles of threads."""

from khala.settings.fields import SettingGroup, SwitchValue, setting
from khala.settings.runs import ModelName


class TitleSettings(SettingGroup):
    """Titles that a model writes after the first answers of a thread."""

    enabled: SwitchValue = setting(
        "KHALA_TITLES",
        default=True,
        description="1 to have a model write titles of threads that have none, in one short call each; 0 to have none.",
    )
    model: ModelName | None = setting(
        "KHALA_TITLE_MODEL",
        None,
        "The model that writes titles. A cheap one is enough.",
        shown_default="the model that wrote the answer; the demo model writes none",
    )
