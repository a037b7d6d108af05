"""Learning: maths, networks, packs and algorithms. It imports only errors, registry and options of the project."""
