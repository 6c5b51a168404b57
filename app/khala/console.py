"""Shared parts of all commands: settings, an event loop, and errors in one line."""

from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from khala.settings import Settings

Result = TypeVar("Result")
EPILOG = "Settings come from environment variables, .env and khala.toml: see docs/configuration.md."


class KnownFailure(click.ClickException):
    """A failure with a message that needs no traceback."""

    exit_code = 1


def load_settings() -> "Settings":
    """Load the settings, and log in their format from now on. Raises `KnownFailure`."""
    from khala import telemetry
    from khala.settings import SettingError, load

    try:
        settings = load()
    except SettingError as error:
        raise KnownFailure(str(error)) from error
    telemetry.configure(settings.process.log_format)
    return settings


def run(command: Coroutine[Any, Any, Result]) -> Result | None:
    """Run the command to its end; None if it was cancelled. Raises `KnownFailure` for expected errors."""
    import asyncio

    import asyncpg
    import uvloop

    from khala.domain.errors import Unavailable
    from khala.models.model_names import BadModelError

    result = None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, suppress(asyncio.CancelledError):
            result = runner.run(command)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Unavailable as error:
        raise KnownFailure(f"{error.message} ({error.__cause__})") from error
    except (OSError, RuntimeError, BadModelError, asyncpg.PostgresError) as error:
        raise KnownFailure(str(error)) from error
    return result
