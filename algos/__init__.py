"""Learning: math, networks, packs and algorithms. Of the project it imports only errors, registry and options."""
