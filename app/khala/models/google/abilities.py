"""The abilities of Google's models, by the beginnings of their names."""

NO_THINKING = ("gemini-1", "gemini-2.0", "gemma-1", "gemma-2", "gemma-3")
"""Models that refuse a request that says how much they think."""


def thinks(model: str) -> bool:
    """Whether the model can be told how much it thinks."""
    return not model.removeprefix("models/").startswith(NO_THINKING)
