"""Checks the options of a run that a client requests."""

import msgspec

from khala.api.agents.catalog import resolve_agent
from khala.api.context import Context
from khala.api.runs import option_checks
from khala.api.tools import client_functions
from khala.api.validation import check_json
from khala.domain.access import Caller
from khala.domain.agents import AUTO
from khala.domain.chat import RunOptions
from khala.domain.errors import InvalidInput

RUN_FIELDS = {field.name: field.encode_name for field in msgspec.structs.fields(RunOptions)}
"""The names of a run's options on the wire."""


async def check_options(
    options: RunOptions, context: Context, caller: Caller, *, agent_path: str = "options.agent"
) -> RunOptions:
    """The options to store, unless the server chooses the agent.

    Raises `InvalidInput` if they cannot be stored, or name a model or an agent in vain.
    """
    if options.model is not None and not context.models.is_allowed(options.model):
        raise InvalidInput("This model is not offered by this server.", path="options.model")
    check_json(options, "options")
    await client_functions.check(options.functions, list_path="options.functions", item_path="options.functions.{}")
    await option_checks.check(options, context, _path_of)
    return options if options.agent == AUTO else await resolve_agent(context, caller, options, path=agent_path)


def _path_of(field: str) -> str:
    """The path of an option in a request. Of a format, only the schema is checked."""
    return "options.responseFormat.schema" if field == "response_format" else f"options.{RUN_FIELDS[field]}"
