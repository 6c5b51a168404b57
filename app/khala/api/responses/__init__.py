"""OpenAI's Responses API over runs: a response is a run, and its events are derived from the run's parts."""
