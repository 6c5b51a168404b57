"""What all commands share: settings, an event loop, and failures that a person reads in one line."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
import click
import uvloop

from khala import settings as configuration
from khala import telemetry
from khala.domain.errors import Unavailable
from khala.settings import SettingError, Settings

Result = TypeVar("Result")
EPILOG = "Settings come from environment variables, .env and khala.toml: see docs/configuration.md."


class KnownFailure(click.ClickException):
    """A failure whose message is all that a person needs."""

    exit_code = 1


def settings() -> Settings:
    """The settings by the environment; logs go where they say from here on. Raises `KnownFailure`."""
    try:
        chosen = configuration.load()
    except SettingError as error:
        raise KnownFailure(str(error)) from error
    telemetry.configure(chosen.process.log_format)
    return chosen


def run(command: Coroutine[Any, Any, Result]) -> Result | None:
    """Run the command to its end. None if it was cancelled. Raises `KnownFailure` for what a person can mend."""
    result = None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, suppress(asyncio.CancelledError):
            result = runner.run(command)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Unavailable as error:
        raise KnownFailure(f"{error.message} ({error.__cause__})") from error
    except (OSError, RuntimeError, asyncpg.PostgresError) as error:
        raise KnownFailure(str(error)) from error
    return result
