"""Learning: math, networks, packs and algorithms. Of the project it imports only the registry; it starts no process."""
