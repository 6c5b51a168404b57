"""Accounts of people at MCP servers: each connects its own, and its runs call the server with its tokens."""
