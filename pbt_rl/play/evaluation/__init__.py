"""Evaluation episodes of saved members, during training and at its end."""
