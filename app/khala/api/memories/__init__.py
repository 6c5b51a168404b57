"""Memories over REST."""
