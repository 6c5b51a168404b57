"""Delivers events to webhooks."""
