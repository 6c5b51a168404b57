"""Threads as rows: sends, messages, the feed of changes, thread lists and presence."""
