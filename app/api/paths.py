"""The ids that paths bear."""

from typing import Annotated
from uuid import UUID

from litestar.params import PathParameter

ThreadId = Annotated[UUID, PathParameter(description="The thread's id.")]
RunId = Annotated[UUID, PathParameter(description="The run's id, which `send` answered.")]
