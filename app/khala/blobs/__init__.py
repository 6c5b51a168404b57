"""Blobs: what is too large for a part, kept by its content's hash."""
