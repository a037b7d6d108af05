"""gymnax: games and control in JAX, as rows of tensors."""
