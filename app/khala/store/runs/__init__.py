"""Runs as rows: leases, parts and their group commit, receipts, and requests that start runs."""
