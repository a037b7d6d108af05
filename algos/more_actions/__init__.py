"""Distributions of actions that are bent into their bounds, and of those that are discrete and continuous."""
