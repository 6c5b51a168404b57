"""The client for OpenAI's chat completions, and for every server that speaks them."""
