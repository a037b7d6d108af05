"""Evaluation episodes of saved members: during training for a curve, at its end to select the best member."""
