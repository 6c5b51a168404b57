"""OAuth for MCP clients: metadata, registration, consent, tokens, and the list of apps with access."""
