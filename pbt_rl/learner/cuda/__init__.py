"""Acceleration on CUDA devices: CUDA graphs, streams, a timing of packings, page-locked memory."""
