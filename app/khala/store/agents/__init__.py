"""Agents of users."""
