"""Live: from a committed change to everybody who watches."""
