"""Titles of threads, which a model writes after the first answers."""
