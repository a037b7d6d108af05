"""Trackers: where the numbers of a run go besides the terminal and TensorBoard, chosen by `--track`."""
