"""What operators do with a deployment beside serving it: import accounts, back up, restore, upgrade."""
