"""Runs programs that nobody vouches for, apart from the server, its files and the network."""

from khala.tools.sandbox.program import Exit, Language, Program, SandboxOptions
from khala.tools.sandbox.sandbox import Sandbox
from khala.tools.sandbox.self_test import missing

__all__ = ["Exit", "Language", "Program", "Sandbox", "SandboxOptions", "missing"]
