"""What can be decided without I/O: no await, no clock, no randomness, no SQL."""
