"""MF-PBT: groups of members that are compared at different frequencies."""
