"""OpenAI's chat completion protocol, on top of Khala's durable runs."""
