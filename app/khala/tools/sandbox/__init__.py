"""Runs untrusted programs, isolated from the server, its files and the network."""

from khala.tools.sandbox.program import Language, Program, ProgramExit, SandboxOptions
from khala.tools.sandbox.sandbox import Sandbox
from khala.tools.sandbox.self_test import missing_requirement

__all__ = ["Language", "Program", "ProgramExit", "Sandbox", "SandboxOptions", "missing_requirement"]
