"""Loads repositories into the workspace: addresses, downloads, archives, and the tool `load_repo`."""

from khala.tools.repositories.errors import RepositoryError
from khala.tools.repositories.load_repo import LoadRepo
from khala.tools.repositories.loader import (
    ArchiveUpload,
    LoadedRepository,
    LoadProgress,
    RepositoryLoader,
    RepositoryRequest,
)

__all__ = [
    "ArchiveUpload",
    "LoadProgress",
    "LoadRepo",
    "LoadedRepository",
    "RepositoryError",
    "RepositoryLoader",
    "RepositoryRequest",
]
