"""Providers through pydantic-ai: Anthropic and Google."""
