"""Mutants of command agents: their processes, their output, and how their end is judged."""

from tests.mutants.mutant import Mutant

PROCESS = "tests/integration/test_command_process.py"

MUTANTS = (
    Mutant(
        name="a-quoted-marker-completes",
        file="app/khala/domain/plans/completion.py",
        old="if not is_quoted and _MARKER.fullmatch(line):",
        new="if _MARKER.fullmatch(line):",
        tests=("tests/unit/test_plan_output.py", "tests/laws/test_plan_output.py"),
        why="An agent that only quotes its instructions would complete its step.",
    ),
    Mutant(
        name="a-longer-fence-is-closed-by-a-shorter-one",
        file="app/khala/domain/plans/completion.py",
        old="len(mark) >= len(fence.mark) and",
        new="",
        tests=("tests/unit/test_plan_output.py", "tests/laws/test_plan_output.py"),
        why="A marker in a code block that has another code block in it would complete a step.",
    ),
    Mutant(
        name="a-rate-limit-overrides-success",
        file="app/khala/domain/plans/command_results.py",
        old="    if code == 0:\n        return None\n",
        new="",
        tests=("tests/unit/test_command_agents.py",),
        why="Work that succeeded would be done again.",
    ),
    Mutant(
        name="a-package-is-a-rate-limit",
        file="app/khala/domain/plans/rate_limits.py",
        old=" if not _NAME.search(word)",
        new="",
        tests=("tests/unit/test_plan_output.py",),
        why="A missing package whose name tells of limits would pause a plan.",
    ),
    Mutant(
        name="a-prompt-is-an-option",
        file="app/khala/tools/commands/runner.py",
        old='f" {prompt}" if prompt.startswith("-") else prompt',
        new="prompt",
        tests=(f"{PROCESS}::test_a_prompt_in_an_argument_is_no_option",),
        why="Whoever writes a message could give options to the program.",
    ),
    Mutant(
        name="a-command-gets-settings",
        file="app/khala/tools/commands/config.py",
        old="if name.startswith(RESERVED_VARIABLES):",
        new="if name in RESERVED_VARIABLES:",
        tests=("tests/unit/test_command_agents.py",),
        why="A program could get Khala's own secrets.",
    ),
    Mutant(
        name="a-command-outlives-its-cancellation",
        file="app/khala/tools/commands/process.py",
        old="await uninterrupted(_end(process, min(max_kill_after, kill_after())))",
        new="await _end(process, min(max_kill_after, kill_after()))",
        tests=(f"{PROCESS}::test_no_process_is_left_of_a_command_that_ignores_signals_and_makes_daemons",),
        why="A second cancellation would leave the process behind.",
    ),
)
