"""Plain-text tables."""

from collections.abc import Sequence


def format_number(value: float | None) -> str:
    """A number with about three significant digits; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.2f}"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines. The first two columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
