"""Rows of tools: approvals, rules, users' own tools, and the workspace's files and todos."""
