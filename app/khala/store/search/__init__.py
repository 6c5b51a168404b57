"""The search of past messages and files."""
