"""Declares Welch's t-test, for rules and pages that tell a difference from noise."""
