"""Films of what a member plays: .mp4 and .gif files, and the clips of TensorBoard."""
