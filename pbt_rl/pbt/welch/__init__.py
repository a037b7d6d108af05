"""Welch's t-test."""
