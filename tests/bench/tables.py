"""Plain tables: numbers as people read them, in columns."""

from collections.abc import Sequence


def shown(value: float | None) -> str:
    """A number with three digits or so; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the first two columns to the left, and all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
