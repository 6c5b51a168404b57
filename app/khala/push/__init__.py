"""Delivers notifications to browsers by Web Push (RFC 8030)."""
