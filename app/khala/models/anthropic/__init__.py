"""The client for the Messages API of Anthropic."""
