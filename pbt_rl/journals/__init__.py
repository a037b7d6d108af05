"""Journals of runs, read as typed events."""
