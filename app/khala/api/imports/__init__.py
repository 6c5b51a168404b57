"""Imports of exports of other products over REST."""
