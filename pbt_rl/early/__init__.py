"""A learner that starts before its run is planned, and loads torch meanwhile."""
