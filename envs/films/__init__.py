"""Units with a camera on their first row, for families of the core and for environments of a user's own."""
