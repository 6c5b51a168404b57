"""The errors of loading a repository. Each has a code for programs and a sentence for people."""

from typing import Literal, TypeAlias

from khala.tools.port import ToolError

RepositoryErrorCode: TypeAlias = Literal[
    "bad_arguments", "conflict", "failed", "forbidden", "not_an_archive", "not_found", "private", "rate_limited",
    "timeout", "too_large", "unavailable",
]  # fmt: skip


class RepositoryError(ToolError):
    """A repository could not be loaded. The workspace is unchanged.

    `forbidden`: a host, an address or a redirect that may not be requested. `private`: the host requires a login.
    `rate_limited`: the host asks to wait, for `retry_after_seconds` if it says so. `not_an_archive`: the content is not
    an archive, is incomplete or is damaged. `conflict`: the folder has files of another source.
    """

    def __init__(
        self, message: str, *, code: RepositoryErrorCode = "failed", retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds
