"""Streams of model answers over HTTP: the client, server-sent events, and what the protocols have in common."""
