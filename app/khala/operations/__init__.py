"""Commands of operators: import accounts, back up, restore, check an upgrade."""
