"""Completions of arguments over MCP: paths of the workspace's files. Other arguments have no values to suggest."""

import mcp_types as types

from khala.api.mcp.prompts import McpPrompts
from khala.api.mcp.resources import TEMPLATES, McpResources
from khala.domain.errors import NotFound

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
            await self._prompts.get(ref.name, {})
            return types.Completion(values=[], total=0)
        kinds = await self._resources.kinds()
        if not any(TEMPLATES[kind].uri_template == ref.uri for kind in kinds):
            raise NotFound("There is no such resource template.")
        if ref.uri != TEMPLATES["files"].uri_template or argument.name != PATH:
            return types.Completion(values=[], total=0)  # Ids are found in the list of resources.
        paths = await self._resources.file_paths(argument.value, MAX_VALUES + 1)
        return types.Completion(values=paths[:MAX_VALUES], has_more=len(paths) > MAX_VALUES)
