"""What the tests and benchmarks share: local servers that stand in for the outside world."""
