"""Search over REST."""
