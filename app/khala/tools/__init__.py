"""Tools: what agents can do, and where they do it."""
