"""Fresh games that saved members play: beside training, for a curve, and at the end, to name the best one."""
