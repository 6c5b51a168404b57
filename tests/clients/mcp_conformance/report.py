"""Prints the tables of docs/mcp.md that the expected results make: `python -m tests.clients.mcp_conformance.report`."""

from collections import defaultdict
from collections.abc import Sequence

from tests.clients.mcp_conformance.suite import ExpectedResults, expected

TITLES = {"server": "Khala as a server", "client": "Khala as a client"}


def report(parts: Sequence[ExpectedResults]) -> str:
    """The numbers of each part, and the scenarios that fail with the reasons."""
    numbers = "".join(
        f"| {TITLES[part.side]} | {part.version} | {len(part.passes) + len(part.fails)} | {len(part.passes)} |\n"
        for part in parts
    )
    return f"| | protocol version | scenarios | pass |\n|---|---|---|---|\n{numbers}\n{_failures(parts)}"


def _failures(parts: Sequence[ExpectedResults]) -> str:
    by_reason: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for part in parts:
        for name, reason in part.fails.items():
            by_reason[TITLES[part.side], reason][f"`{name}`"] = None
    rows = (f"| {side} | {', '.join(names)} | {reason} |\n" for (side, reason), names in by_reason.items())
    return f"| | scenarios that fail | why |\n|---|---|---|\n{''.join(rows)}"


if __name__ == "__main__":
    print(report(expected()))
