"""Runs beside each other: paired arms with a verdict (`prove`), and sweeps."""
