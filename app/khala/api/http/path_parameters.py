"""Ids in paths."""

from typing import Annotated
from uuid import UUID

from litestar.params import PathParameter

ThreadId = Annotated[UUID, PathParameter(description="The thread's id.")]
RunId = Annotated[UUID, PathParameter(description="The run's id, as returned by `send`.")]
BlobId = Annotated[UUID, PathParameter(description="The blob's id, as in the part that refers to it.")]
FileId = Annotated[UUID, PathParameter(description="The file's id, as in the list of files.")]
CallId = Annotated[str, PathParameter(description="The tool call's id, as in its part.", max_length=100)]
UserId = Annotated[UUID, PathParameter(description="The user's id.")]
LinkId = Annotated[UUID, PathParameter(description="The link's id, as in the list of links.")]
SessionId = Annotated[UUID, PathParameter(description="The session's id, as in the list of sessions.")]
TokenId = Annotated[UUID, PathParameter(description="The token's id, as in the list of tokens.")]
PlanId = Annotated[UUID, PathParameter(description="The plan's id.")]
StepId = Annotated[str, PathParameter(description="The step's id within its plan.", max_length=64)]
