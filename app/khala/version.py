"""The version of the installed package, which pyproject.toml names."""

from importlib.metadata import version

KHALA_VERSION = version("khala")
