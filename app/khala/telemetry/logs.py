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
DETAILS = re.compile(r"(?s)(?<=\nDETAIL:  ).*?(?=\nHINT:  |\n\[SQL|\n\n(?:The above|During handling of) |\Z)")
"""What Postgres tells of the row that an error is about, in the error's text or a traceback's."""
SECRET_NAMES = re.compile(
    r"(?i)password|secret|token$|^token|authorization|cookie|anon_?key|share_?key|api_?key|verifier"
)
"""Names under which nothing is ever logged."""
SECRETS = re.compile(
    r"khala_[\w-]{20,}"  # an API token
    r"|(?i:bearer)\s+[\w.~+/=-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # a JWT
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # name and password in a URL
    r"|(?<=/autopilot/detail/)[^/\s?]+"  # a token that is a path's end
    r"|(?i:(?<=key=)|(?<=key: )|(?<=share=))[!-~]{32,}"
)
"""What a secret looks like, wherever it has got into a text."""


def traced(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A log line with the trace that it belongs to, where there is one."""
    trace_id = traces.trace_id()
    if trace_id is not None:
        event.setdefault("trace_id", trace_id)
    return event


def redacted(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A log line without secrets: by their names, and by what they look like."""
    return {name: HIDDEN if SECRET_NAMES.search(name) else _hidden(value) for name, value in event.items()}


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return _without_secrets(value)
    if isinstance(value, dict):
        return {name: HIDDEN if SECRET_NAMES.search(str(name)) else _hidden(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(one) for one in value]
    return value


def _without_secrets(text: str) -> str:
    return SECRETS.sub(HIDDEN, DETAILS.sub(HIDDEN, text))


def _traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """As plain text; the console's renderer comes last, so nobody redacts after it."""
    whole = io.StringIO()
    plain_traceback(whole, exc_info)
    stream.write(_without_secrets(whole.getvalue()))


class Redacting(logging.Filter):
    """The same for what libraries log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through, without secrets."""
        record.msg, record.args = _without_secrets(record.getMessage()), None
        return True


def configure(log_format: str, *, level: int = logging.INFO) -> None:
    """Set logging up for this process; `log_format` is `text` for people or `json` for machines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        traced,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor
    if log_format == "json":
        # Without local variables: they hold keys and people's words.
        shared.append(ExceptionRenderer(ExceptionDictTransformer(show_locals=False)))
        last = structlog.processors.JSONRenderer()
    else:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)
    structlog.configure(
        processors=[*shared, redacted, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    libraries = logging.StreamHandler(sys.stderr)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redacted, last],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[libraries])
    for handler in logging.getLogger().handlers:
        handler.addFilter(Redacting())
