"""The operators' console over REST: what administrators see and do. `docs/reference/console.md` specifies it."""
