"""Durable Streams, the protocol, at `/v1/stream/…`."""
