"""Providers called by pydantic-ai: Anthropic and Google."""
