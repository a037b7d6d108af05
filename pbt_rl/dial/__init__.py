"""`--hours`: a run of a given time."""
