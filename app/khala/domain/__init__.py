"""Pure domain logic: no await, no clock, no randomness, no SQL. Times and ids arrive as arguments."""
