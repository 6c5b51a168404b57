"""The console of administrators: lists over all accounts, each by an index, and audited commands."""
