"""Export of a trained member's network, with a model card, for other programs."""
