"""The store: alone speaks SQL. The row lock of a thread guards all that belongs to it."""
