"""The tool `complete_step`: the agent of a plan's step says that the step is complete."""

from typing import Any

from khala.domain.plans.plan import MAX_SUMMARY_CHARACTERS
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.tools import ToolSpec
from khala.tools.port import CallContext, CallResult
from khala.tools.workspace_tools import schema

MAX_EVIDENCE_CHARACTERS = 4_000


class CompleteStep:
    """Ends the run of a step, and completes the step. Only runs of steps offer it."""

    spec = ToolSpec(
        name=COMPLETE_STEP,
        description=(
            "Say that your step of the plan is complete. Call it only when every acceptance criterion is met and you"
            " have checked that. It ends your work on the step."
        ),
        parameters=schema(
            "summary",
            summary={
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_SUMMARY_CHARACTERS,
                "description": "What was done, for the people and agents who do the next steps.",
            },
            evidence={
                "type": "string",
                "maxLength": MAX_EVIDENCE_CHARACTERS,
                "description": "How you know that the acceptance criteria are met, such as the output of the tests.",
            },
        ),
        idempotent=True,
    )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Accept the summary. The run ends after this call, and the plan reads the summary from its arguments."""
        return CallResult(output="The step is complete.", summary=" ".join(args["summary"].split())[:120])
