"""A program that checks arguments in a process of its own, which can be killed and whose memory is bounded.

Standard input is JSON, `[schema, value, subject]`; standard output is JSON, the list of problems.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

MAX_CPU_SECONDS = 2
"""Processor time of the process, its start included."""
MAX_MEMORY_BYTES = 512 << 20
NICENESS = 5
"""Lowers the priority of the process below the server's."""
COMMAND = (sys.executable, "-s", "-P", "-m", "khala.tools.validation.process")


def environment() -> dict[str, str]:
    """The environment variables that the program needs. They contain no secrets."""
    return {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": os.defpath}


def main() -> None:
    """Check the arguments on standard input."""
    import resource

    import msgspec

    from khala.tools.validation.validator import compile_schema, problems

    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    with suppress(OSError):  # on Linux this process is killed first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(ValueError, OSError):  # not every system supports this limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    schema, args, subject = msgspec.json.decode(sys.stdin.buffer.read())
    compiled = compile_schema(schema)
    mismatches = [] if compiled.is_valid(args) else problems(compiled, args, subject)
    sys.stdout.buffer.write(msgspec.json.encode(mismatches))


if __name__ == "__main__":
    main()
