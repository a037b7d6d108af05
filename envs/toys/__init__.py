"""More toys: they show that nothing is lost, what masks and composite actions do, and how a run fails."""
