"""What makes a CUDA device fast: recorded calls, streams, a trial of packings, locked memory."""
