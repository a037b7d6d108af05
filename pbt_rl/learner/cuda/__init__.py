"""Acceleration on CUDA devices: CUDA graphs, streams, choice of the packing, page-locked memory."""
