"""Checks arguments that may take long to check, as a program of its own: it can be killed, and its memory is bounded.

Standard input is JSON, `[schema, arguments]`; standard output is JSON, the list of problems.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

CPU_SECONDS = 2
"""Of all that the process does, its start included."""
MEMORY_BYTES = 512 << 20
NICENESS = 5
"""How far the server's own work goes before."""
COMMAND = (sys.executable, "-s", "-P", "-m", "khala.tools.validation.process")


def environment() -> dict[str, str]:
    """What the program needs of the environment, and no secrets."""
    return {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": os.defpath}


def main() -> None:
    """Check what comes on standard input."""
    import resource

    import msgspec

    from khala.tools.validation.validator import problems, validator

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    with suppress(OSError):  # where there is no such file; else this process goes first when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(ValueError, OSError):  # where the system can't bound it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    schema, args = msgspec.json.decode(sys.stdin.buffer.read())
    checks = validator(schema)
    found = [] if checks.is_valid(args) else problems(checks, args)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
