"""The API: REST, WebSocket and server-sent events over the store and the live feed."""
