"""Tools that models can call: built-in tools, users' own programs, tools of MCP servers, and the sandbox."""
