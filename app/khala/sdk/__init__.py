"""Agents and tools of your own, in Python: what the module that `KHALA_APP` names imports.

```python
from khala.sdk import AgentRunContext, agent, tool
```
"""

from khala.domain.run_progress import RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.sdk.agent import (
    AgentRunContext,
    AppAgent,
    ApprovalResult,
    CallOutcome,
    ConversationTurn,
    RecordedCall,
    agent,
)
from khala.sdk.errors import StepError
from khala.sdk.loop import EndReason, LoopContext, Reply
from khala.sdk.tool import AppTool, ToolCallContext, tool
from khala.tools.port import ToolError, ToolFile

__all__ = [
    "AgentRunContext",
    "AppAgent",
    "AppTool",
    "ApprovalResult",
    "CallOutcome",
    "ConversationTurn",
    "EndReason",
    "LoopContext",
    "RecordedCall",
    "Reply",
    "RunStep",
    "StepError",
    "ToolCallContext",
    "ToolError",
    "ToolFile",
    "ToolSpec",
    "ToolUse",
    "agent",
    "tool",
]
