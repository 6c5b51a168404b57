"""Webhooks over REST."""
