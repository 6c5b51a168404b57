"""Threads over REST, and their feed over WebSocket and server-sent events."""
