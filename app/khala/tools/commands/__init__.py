"""Command agents: programs of the operator's configuration that answer in place of a model."""

from khala.tools.commands.checkout import Checkout
from khala.tools.commands.config import Command, find_command, read_commands
from khala.tools.commands.git import Git, GitConflictError, GitError
from khala.tools.commands.runner import CommandExit, CommandRunner

__all__ = [
    "Checkout",
    "Command",
    "CommandExit",
    "CommandRunner",
    "Git",
    "GitConflictError",
    "GitError",
    "find_command",
    "read_commands",
]
