"""Checks the generation options of a requested run, for all protocols."""

from collections.abc import Callable

from khala.api.context import Context
from khala.api.tools import client_functions
from khala.domain.chat import RunOptions
from khala.domain.errors import InvalidInput
from khala.models import model_names, option_support
from khala.models.model_names import ModelRef


async def check(options: RunOptions, context: Context, path: Callable[[str], str]) -> None:
    """Raise `InvalidInput` for options that cannot be used, or that the requested or default model lacks.

    `path` maps the name of a field of the options to its path in the request. The models of an agent and fallbacks are
    not checked: they use the options that they have.
    """
    await client_functions.check_format(options.response_format, path("response_format"))
    client_functions.check_tool_choice(options, path("tool_choice"))
    lacking = option_support.unsupported(requested_model(options, context), options) if options.agent is None else None
    if lacking is not None:
        raise InvalidInput(lacking.message, path=path(lacking.field))


def without_effect(options: RunOptions, context: Context) -> list[str]:
    """The fields of the options that the requested or default model does not have."""
    return option_support.without_effect(requested_model(options, context), options) if options.agent is None else []


def requested_model(options: RunOptions, context: Context) -> ModelRef:
    """The model that the run names, or the server's default."""
    return model_names.parse(options.model or context.models.listed[0])
