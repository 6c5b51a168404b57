"""Plans as documents that people and other tools write: Markdown checklists, and the `prd.json` of ralph-tui. Pure."""
