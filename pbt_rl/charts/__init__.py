"""Figures, charts and a table of start values in TensorBoard, beside the numbers."""
