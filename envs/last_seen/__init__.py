"""The last action and reward as an observation of any environment."""
