"""The version of the installed distribution `khala-server`, whose import package is `khala`."""

from importlib.metadata import version

KHALA_VERSION = version("khala-server")
