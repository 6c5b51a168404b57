"""The executor protocol over HTTP and WebSocket."""
