"""A plan from a goal: the run of a model that makes the plan with the tool `plan_create`."""

import msgspec

from khala.domain.chat import PlanDraft, RunOptions, StoredRunOptions
from khala.domain.errors import InvalidInput

PLAN_CREATE = "plan_create"
CHANGING_TOOLS = frozenset({PLAN_CREATE, "plan_update"})
"""The tools that the run of a step is not offered: a step makes no plans."""
MAX_PLANNER_STEPS = 12
"""Steps of the run: it may look at files first, and correct a plan that was refused."""
PLANNER_TOOLS = (PLAN_CREATE, "plan_status", "read_file", "list_directory", "glob", "grep", "read_blob")
"""The plan is the only thing that the run can create or change."""
PLANNER_INSTRUCTIONS = """\
Make a plan for the goal in the last message. Do not begin the work: agents execute the steps later, each in a \
conversation of its own that has only the goal, the summaries of the steps before it, and the step itself.

First look at the files that the goal is about, if there are any. Then call plan_create once.
- A step is one piece of work with one result. Give it an id such as S1, a title that begins with a verb, and \
instructions that are complete by themselves: files, names, decisions.
- Give each step acceptance criteria that can be checked: a command that passes, a file that exists, a fact in a text.
- dependsOn names the steps whose results a step needs, and no others. Steps without a dependency between them may run \
at the same time. There are no cycles.
- Make as few steps as the goal needs, most often 3 to 12. Group them in phases only if there are many.
If plan_create refuses the plan, correct what the error names, and call it again with the whole plan.
When the plan is created, answer in one sentence. A person reviews the plan and starts it."""


MAX_ADDED_INSTRUCTIONS_CHARACTERS = 6_500
"""Instructions of the caller. With those of the planner they are the instructions of a run, which are bounded, too."""


def planner_options(options: RunOptions, draft: PlanDraft) -> StoredRunOptions:
    """The options of the run that makes this plan. Its message is the goal; model, budget and agent are the caller's.

    Raises `InvalidInput` for options that such a run can't have.
    """
    if options.tools is not None or options.functions:
        field = "functions" if options.functions else "tools"
        raise InvalidInput("The run that makes a plan has tools of its own. Leave this out.", path=f"options.{field}")
    if len(options.instructions) > MAX_ADDED_INSTRUCTIONS_CHARACTERS:
        message = f"The instructions for a plan have at most {MAX_ADDED_INSTRUCTIONS_CHARACTERS:,} characters."
        raise InvalidInput(message, path="options.instructions")
    stored = msgspec.structs.asdict(options) | {
        "autopilot": True,
        "max_steps": MAX_PLANNER_STEPS,
        "tools": PLANNER_TOOLS,
        "instructions": "\n\n".join(filter(None, (PLANNER_INSTRUCTIONS, options.instructions))),
        "draft": draft,
    }
    return StoredRunOptions(**stored)
