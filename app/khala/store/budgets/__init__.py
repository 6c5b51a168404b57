"""Budgets as rows: reservations and settlement."""
