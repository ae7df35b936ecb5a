"""Aggregates of continuous views, one file each."""
