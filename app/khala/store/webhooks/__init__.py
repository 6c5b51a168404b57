"""Webhooks: endpoints, and the outbox of events."""
