"""Adam as one kernel for a GPU, written in Triton."""
