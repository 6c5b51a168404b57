"""Logs: one line per request or run, with an event name and key=value, to standard error."""

import logging
import sys

import structlog
from structlog.dev import plain_traceback
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer


def configure(log_format: str, *, level: int = logging.INFO) -> None:
    """Set logging up for this process; `log_format` is `text` for people or `json` for machines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor
    if log_format == "json":
        # Without local variables: they hold keys and people's words.
        shared.append(ExceptionRenderer(ExceptionDictTransformer(show_locals=False)))
        last = structlog.processors.JSONRenderer()
    else:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
