"""Settings: what an operator can choose, read once by the composition root; other modules receive values."""

from khala.settings.fields import SettingDefinition, SettingError
from khala.settings.reader import from_environment, load
from khala.settings.settings import Settings, definitions
from khala.settings.storage import INNER_POOL_SIZE, ISOLATED_POOL_SIZE

__all__ = [
    "INNER_POOL_SIZE",
    "ISOLATED_POOL_SIZE",
    "SettingDefinition",
    "SettingError",
    "Settings",
    "definitions",
    "from_environment",
    "load",
]
