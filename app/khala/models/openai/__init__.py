"""OpenAI's chat completions, and every server that speaks them: our own reader, since each token passes through it."""
