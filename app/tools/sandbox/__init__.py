"""Runs programs that nobody vouches for, apart from the server, its files and the network."""

from app.tools.sandbox.program import Exit, Language, Program, SandboxOptions
from app.tools.sandbox.sandbox import Sandbox
from app.tools.sandbox.trial import missing

__all__ = ["Exit", "Language", "Program", "Sandbox", "SandboxOptions", "missing"]
