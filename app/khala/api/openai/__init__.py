"""The protocol of OpenAI's chat completions, spoken over runs that are as durable as all others."""
