"""Decimal numbers as text: amounts of USD and other measures, on the wire and in receipts."""

from decimal import Decimal


def format_decimal(number: Decimal) -> str:
    """The number without an exponent and without trailing zeros, as in `0.0042`."""
    return f"{number.normalize():f}"


def format_optional(number: Decimal | None) -> str | None:
    """The same; None stays None."""
    return None if number is None else format_decimal(number)
