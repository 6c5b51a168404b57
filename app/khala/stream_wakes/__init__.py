"""Wakes the workers of subscriptions to durable streams."""
