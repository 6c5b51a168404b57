"""The conformance tests of the protocols that Khala speaks: `python -m tests.clients.conformance [SUITE [PATTERN]]`.

Suites are `streams` (Durable Streams) and `mcp` (the Model Context Protocol, Khala as a server and as a client). It
starts servers on loopback with embedded databases, and exits with 1 if a result differs from what is expected.
"""

import sys

from tests.clients import streams_conformance
from tests.clients.mcp_conformance import suite as mcp_conformance

SUITES = {"streams": streams_conformance.main, "mcp": mcp_conformance.main}


def main() -> int:
    """Run the suite that the first argument names, or all. Returns the exit status."""
    names, pattern = sys.argv[1:2] or list(SUITES), " ".join(sys.argv[2:])
    if unknown := set(names) - SUITES.keys():
        sys.exit(f"{unknown.pop()}: no such suite. There are {', '.join(SUITES)}.")
    return max(SUITES[name](pattern) for name in names)


if __name__ == "__main__":
    sys.exit(main())
