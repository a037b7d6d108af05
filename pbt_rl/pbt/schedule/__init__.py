"""Schedule: train by the values that a recorded run found."""
