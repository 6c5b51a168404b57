"""Arrays as arguments of statements, written so that Postgres keeps the plan of a statement.

A plan for an array of few items seems so much cheaper than one for any number of them that Postgres would plan the
statement at each call, which often takes longer than to execute it. So the arrays are hidden from the planner.
"""


def unnested(first: int, *types: str) -> str:
    """`unnest` of the arguments from this number on, which are arrays of these types."""
    return f"unnest({', '.join(_hidden(number, type_) for number, type_ in enumerate(types, first))})"


def any_of(number: int, type_: str) -> str:
    """`ANY` of the argument of this number, which is an array of this type."""
    return f"ANY({_hidden(number, type_)}::{type_}[])"


def _hidden(number: int, type_: str) -> str:
    return f"(SELECT ${number}::{type_}[])"
