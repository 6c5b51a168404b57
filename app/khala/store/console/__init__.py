"""What administrators see and do in the console: lists over all accounts, each by an index, and audited commands."""
