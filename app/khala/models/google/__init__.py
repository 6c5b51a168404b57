"""The client for the Gemini API of Google."""
