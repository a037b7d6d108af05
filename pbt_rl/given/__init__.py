"""What users write besides single options, and the names and numbers of others."""
