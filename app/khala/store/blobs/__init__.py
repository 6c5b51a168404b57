"""Blobs as rows: objects by hash, and the references that open them."""
