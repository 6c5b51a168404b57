"""Accounts as rows: users, sessions, API tokens, sign-ins, claims and the audit trail."""
