"""Accounts over REST: authentication, sign-in, API tokens and the caller's own account."""
