"""The abilities of Anthropic's models, by the beginnings of their names."""

NEWEST = ("claude-fable-5", "claude-mythos-5", "claude-opus-5", "claude-sonnet-5", "claude-haiku-5-5")
STRUCTURED_OUTPUTS = (
    *NEWEST,
    "claude-haiku-4-5",
    "claude-sonnet-4-5",
    "claude-sonnet-4-6",
    "claude-opus-4-1",
    "claude-opus-4-5",
    "claude-opus-4-6",
    "claude-opus-4-7",
    "claude-opus-4-8",
)
"""Models that make an answer, and the arguments of strict tools, fit a schema."""


ADAPTIVE_THINKING = (*NEWEST, "claude-sonnet-4-6", "claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8")
"""Models that decide themselves how much they think."""
EFFORT = (*ADAPTIVE_THINKING, "claude-opus-4-5")
XHIGH_EFFORT = (*NEWEST, "claude-opus-4-7", "claude-opus-4-8")
"""Models that have the effort `xhigh`."""


def thinks_adaptively(model: str) -> bool:
    """Whether the model decides how much it thinks."""
    return model.startswith(ADAPTIVE_THINKING)


def has_effort(model: str) -> bool:
    """Whether the model can be told how much effort to make."""
    return model.startswith(EFFORT)


def effort(model: str, requested: str) -> str:
    """The model's word for the requested effort."""
    if requested in ("none", "minimal"):
        return "low"
    if requested not in ("xhigh", "max"):
        return requested
    if not model.startswith(ADAPTIVE_THINKING):
        return "high"
    return "xhigh" if requested == "xhigh" and model.startswith(XHIGH_EFFORT) else "max"


def has_structured_outputs(model: str) -> bool:
    """Whether the model makes answers fit a schema."""
    return model.startswith(STRUCTURED_OUTPUTS)
