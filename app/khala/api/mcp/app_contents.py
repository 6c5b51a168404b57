"""The prompts and resources of the operator's application (`KHALA_APP`) that a caller is offered over MCP."""

from collections.abc import Iterator
from contextlib import contextmanager

import mcp_types as types
import structlog

from khala.api.context import Context
from khala.api.mcp.call_results import content_blocks
from khala.api.mcp.concurrent_calls import counted_call
from khala.api.mcp.offered_tools import McpToolCatalog
from khala.api.mcp.resource_contents import MAX_RESOURCE_BYTES, resource_contents
from khala.domain.access import Caller
from khala.domain.errors import Forbidden, InvalidInput, KhalaError, NotFound, PayloadTooLarge, Unavailable
from khala.sdk.prompt import AppPrompt
from khala.sdk.reading import ReaderContext
from khala.sdk.resource import AppResource
from khala.tools.port import ToolError, ToolFile

log = structlog.get_logger()

MAX_ARGUMENT_CHARACTERS = 100_000
"""Characters of one argument of a prompt."""
ERRORS: dict[str, type[KhalaError]] = {
    "not_found": NotFound,
    "bad_arguments": InvalidInput,
    "forbidden": Forbidden,
    "too_large": PayloadTooLarge,
}
"""The error by the code of a `ToolError`. Any other code is `Unavailable`."""


class McpAppContents:
    """The prompts and resources of the application that one request is offered. The methods raise `KhalaError`."""

    def __init__(self, context: Context, caller: Caller, catalog: McpToolCatalog) -> None:
        self._app = context.tools.app
        self._caller = caller
        self._catalog = catalog

    async def prompts(self) -> dict[str, AppPrompt]:
        """The prompts by name."""
        prompts = self._app.prompts
        names = await self._catalog.allowed_names([one.name for one in prompts.values() if self._may_read(one)])
        return {name: prompt for name, prompt in sorted(prompts.items()) if name in names}

    async def resources(self) -> dict[str, AppResource]:
        """The resources by name, in the order of names."""
        resources = self._app.resources
        names = await self._catalog.allowed_names([one.name for one in resources.values() if self._may_read(one)])
        return {name: resource for name, resource in sorted(resources.items()) if name in names}

    async def get_prompt(self, prompt: AppPrompt, arguments: dict[str, str]) -> types.GetPromptResult:
        """The messages of the prompt."""
        if any(len(value) > MAX_ARGUMENT_CHARACTERS for value in arguments.values()):
            raise PayloadTooLarge(f"An argument has at most {MAX_ARGUMENT_CHARACTERS:,} characters.")
        with self._call(prompt.name):
            messages = await prompt.messages(arguments, self._reader)
        blocks = content_blocks([message.content for message in messages], f"prompts/{prompt.name}")
        return types.GetPromptResult(
            description=prompt.function.description,
            messages=[
                types.PromptMessage(role=message.role, content=block)
                for message, block in zip(messages, blocks, strict=True)
            ],
        )

    async def read(self, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
        """The resource with this URI. Raises `NotFound` if none has it."""
        resources = list((await self.resources()).values())
        for resource in sorted(resources, key=lambda one: one.is_template):
            variables = resource.uri.match(uri)
            if variables is not None:
                with self._call(resource.name):
                    file = await resource.read(variables, self._reader)
                return _contents(uri, file)
        raise NotFound("There is no such resource.")

    @property
    def _reader(self) -> ReaderContext:
        return ReaderContext(user_id=None if self._caller.user_id is None else str(self._caller.user_id))

    def _may_read(self, content: AppPrompt | AppResource) -> bool:
        return content.guests or self._caller.user_id is not None

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """Call a function of the application inside: its errors become those of Khala."""
        try:
            with counted_call(self._catalog.actor.owner_id):
                yield
        except ToolError as error:
            raise ERRORS.get(error.code, Unavailable)(error.message) from error
        except KhalaError:
            raise
        except Exception as error:  # Any error of the application.
            log.exception("mcp_content_crashed", name=name)
            raise Unavailable(f"{name} failed with an internal error.") from error


def describe_prompt(prompt: AppPrompt) -> types.Prompt:
    """The prompt as clients see it."""
    return types.Prompt(
        name=prompt.name,
        title=prompt.title,
        description=prompt.function.description,
        arguments=[
            types.PromptArgument(
                name=name, description=schema.get("description"), required=name in prompt.function.required
            )
            for name, schema in prompt.function.parameters.items()
        ],
    )


def describe_resource(resource: AppResource) -> types.Resource:
    """A resource without variables as clients see it."""
    return types.Resource(
        uri=resource.uri.text,
        name=resource.name,
        title=resource.title,
        description=resource.function.description,
        mime_type=resource.media_type,
    )


def describe_template(resource: AppResource) -> types.ResourceTemplate:
    """A resource with variables as clients see it."""
    return types.ResourceTemplate(
        uri_template=resource.uri.text,
        name=resource.name,
        title=resource.title,
        description=resource.function.description,
        mime_type=resource.media_type,
    )


def _contents(uri: str, file: ToolFile) -> types.TextResourceContents | types.BlobResourceContents:
    if len(file.data) > MAX_RESOURCE_BYTES:
        raise PayloadTooLarge(
            f"This resource has {len(file.data):,} bytes, and a resource at most {MAX_RESOURCE_BYTES:,}."
        )
    return resource_contents(uri, file.media_type, file.data)
