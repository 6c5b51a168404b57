"""The error by which an agent fails with a message for people."""

import re

AGENT_FAILED = "agent_failed"
CODE = re.compile("[a-z][a-z0-9_]{0,63}")
"""The form of codes of errors and notices."""
CODE_FORM = "1 to 64 lower-case letters, digits and underscores, the first a letter"


class StepError(Exception):
    """A step, a tool call or a model call of an agent failed. The message says why, and is stored in the answer.

    If it ends the run, `code` is the code of the run's error: 1 to 64 lower-case letters, digits and underscores,
    the first a letter. `cause` is why a provider refused a call, if it is known. `retry_after` is the time in seconds
    after which another run may succeed, if it is known.
    """

    code = AGENT_FAILED
    cause: str | None = None
    retry_after: float | None = None

    def __init__(
        self, message: str = "", *, code: str = AGENT_FAILED, cause: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        if CODE.fullmatch(code) is None:
            raise ValueError(f"{code[:100]!r} is no code: it needs {CODE_FORM}.")
        self.code = code
        self.cause = cause
        self.retry_after = retry_after
