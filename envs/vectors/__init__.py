"""Gymnasium vector environments of a user's own: one call steps all rows of a unit."""
