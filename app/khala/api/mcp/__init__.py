"""Khala as an MCP server."""
