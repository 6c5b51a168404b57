"""Completions of arguments over MCP: paths of the workspace's files, and arguments with a fixed set of values.

Other arguments have no values to suggest.
"""

from collections.abc import Iterable

import mcp_types as types

from khala.api.mcp.prompts import McpPrompts
from khala.api.mcp.resources import TEMPLATES, McpResources

MAX_VALUES = 100
"""Values of one completion, as the protocol requires."""
PATH = "path"
"""The variable in the template of files."""


class McpCompletions:
    """The completions that one request is offered. The methods raise `KhalaError`."""

    def __init__(self, resources: McpResources, prompts: McpPrompts) -> None:
        self._resources = resources
        self._prompts = prompts

    async def complete(
        self, ref: types.ResourceTemplateReference | types.PromptReference, argument: types.CompletionArgument
    ) -> types.Completion:
        """The values that begin as the argument does. Raises `NotFound` for what the caller is not offered."""
        if isinstance(ref, types.PromptReference):
            return _completion(await self._prompts.choices(ref.name, argument.name), argument.value)
        choices = await self._resources.choices(ref.uri, argument.name)
        if ref.uri != TEMPLATES["files"].uri_template or argument.name != PATH:
            return _completion(choices, argument.value)
        paths = await self._resources.file_paths(argument.value, MAX_VALUES + 1)
        return types.Completion(values=paths[:MAX_VALUES], has_more=len(paths) > MAX_VALUES)


def _completion(choices: Iterable[str], beginning: str) -> types.Completion:
    values = [choice for choice in choices if choice.startswith(beginning)]
    return types.Completion(values=values[:MAX_VALUES], total=len(values), has_more=len(values) > MAX_VALUES)
