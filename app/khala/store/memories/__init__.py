"""Rows of memories: storing, superseding, searching and forgetting them, and their vectors."""
