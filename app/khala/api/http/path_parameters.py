"""The ids that paths bear."""

from typing import Annotated
from uuid import UUID

from litestar.params import PathParameter

ThreadId = Annotated[UUID, PathParameter(description="The thread's id.")]
RunId = Annotated[UUID, PathParameter(description="The run's id, which `send` answered.")]
BlobId = Annotated[UUID, PathParameter(description="The blob's id, which the part that refers to it tells.")]
CallId = Annotated[str, PathParameter(description="The tool call's id, which its part tells.", max_length=100)]
UserId = Annotated[UUID, PathParameter(description="The user's id.")]
LinkId = Annotated[UUID, PathParameter(description="The link's id, which the list of links tells.")]
SessionId = Annotated[UUID, PathParameter(description="The session's id, which the list of sessions tells.")]
TokenId = Annotated[UUID, PathParameter(description="The token's id, which the list of tokens tells.")]
