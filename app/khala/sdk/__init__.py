"""Agents, tools, prompts and resources of your own, in Python: what the module that `KHALA_APP` names imports.

```python
from khala.sdk import AgentRunContext, agent, prompt, resource, tool
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
from khala.sdk.prompt import AppPrompt, PromptMessage, prompt
from khala.sdk.reading import ReaderContext
from khala.sdk.resource import AppResource, resource
from khala.sdk.tool import AppTool, ToolCallContext, tool
from khala.tools.port import ToolError, ToolFile

__all__ = [
    "AgentRunContext",
    "AppAgent",
    "AppPrompt",
    "AppResource",
    "AppTool",
    "ApprovalResult",
    "CallOutcome",
    "ConversationTurn",
    "EndReason",
    "LoopContext",
    "PromptMessage",
    "ReaderContext",
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
    "prompt",
    "resource",
    "tool",
]
