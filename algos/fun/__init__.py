"""FuN: a manager that sets goals for an A3C worker (Vezhnevets et al. 2017)."""
