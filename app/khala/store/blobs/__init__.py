"""Blobs in the database: objects by hash, and the references of threads to them."""
