"""Schedules: messages to send and plans to start at set times."""
