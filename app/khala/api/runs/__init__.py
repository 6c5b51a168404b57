"""Runs over REST."""
