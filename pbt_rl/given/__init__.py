"""What users give besides single options: tables of start values."""
