"""Imports of conversations from the exports of other products."""
