"""Runs programs that nobody vouches for, apart from the server, its files and the network."""

from khala.tools.sandbox.program import Language, Program, ProgramExit, SandboxOptions
from khala.tools.sandbox.sandbox import Sandbox
from khala.tools.sandbox.self_test import missing

__all__ = ["Language", "Program", "ProgramExit", "Sandbox", "SandboxOptions", "missing"]
