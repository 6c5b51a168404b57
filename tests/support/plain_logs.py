"""Logs errors in the process of a test with plain tracebacks, as a deployment does.

Those of structlog's defaults have all local variables in boxes and colours, and take a tenth of a second of a core.
"""

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback


def install() -> None:
    """Log so from now on, unless a test configures logging itself."""
    *before, _ = structlog.get_config()["processors"]
    structlog.configure(processors=[*before, ConsoleRenderer(colors=False, exception_formatter=plain_traceback)])
