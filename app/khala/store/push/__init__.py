"""Storage of push notifications."""
