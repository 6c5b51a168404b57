"""Fires schedules: sends their messages and starts their plans when they are due."""
