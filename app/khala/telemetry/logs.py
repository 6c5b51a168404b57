"""Logs: one line per request or run, with an event name and key=value, to standard error."""

import io
import logging
import re
import sys
from typing import Any, TextIO

import structlog
from structlog.dev import plain_traceback
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import ExcInfo

from khala.signals import traces

HIDDEN = "[hidden]"
ERROR_DETAILS = re.compile(r"(?s)(?<=\nDETAIL:  ).*?(?=\nHINT:  |\n\[SQL|\n\n(?:The above|During handling of) |\Z)")
"""Row values in the detail of a Postgres error, in the error's text or in a traceback."""
SECRET_NAMES = re.compile(
    r"(?i)password|secret|token$|^token|authorization|cookie|anon_?key|share_?key|api_?key|verifier"
)
"""Keys whose values are never logged."""
SECRETS = re.compile(
    r"khala_[\w-]{20,}"  # an API token
    r"|(?i:bearer)\s+[\w.~+/=-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # a JWT
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # name and password in a URL
    r"|(?<=/autopilot/detail/)[^/\s?]+"  # a token that is a path's end
    r"|(?i:(?<=key=)|(?<=key: )|(?<=share=))[!-~]{32,}"
)
"""Patterns of secrets anywhere in a text."""


def add_trace_id(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the id of the current trace, if there is one."""
    trace_id = traces.trace_id()
    if trace_id is not None:
        event.setdefault("trace_id", trace_id)
    return event


def redact(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Hide secrets, by the names of keys and by patterns."""
    return {name: HIDDEN if SECRET_NAMES.search(name) else _redact_value(value) for name, value in event.items()}


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, dict):
        return {name: HIDDEN if SECRET_NAMES.search(str(name)) else _redact_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(item) for item in value]
    return value


def _redact_text(text: str) -> str:
    return SECRETS.sub(HIDDEN, ERROR_DETAILS.sub(HIDDEN, text))


def _write_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write the traceback without secrets. The console renderer is the last processor, so it must redact here."""
    text = io.StringIO()
    plain_traceback(text, exc_info)
    stream.write(_redact_text(text.getvalue()))


class RedactingFilter(logging.Filter):
    """Hides secrets in the log records of libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record. Every record passes."""
        record.msg, record.args = _redact_text(record.getMessage()), None
        return True


def configure(log_format: str, *, level: int = logging.INFO) -> None:
    """Configure logging of this process. `log_format`: `text` for people or `json` for programs."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_trace_id,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor
    if log_format == "json":
        # Without local variables, which may hold keys and messages.
        shared.append(ExceptionRenderer(ExceptionDictTransformer(show_locals=False)))
        last = structlog.processors.JSONRenderer()
    else:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)
    structlog.configure(
        processors=[*shared, redact, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    libraries = logging.StreamHandler(sys.stderr)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, last],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[libraries])
    for handler in logging.getLogger().handlers:
        handler.addFilter(RedactingFilter())
