"""Many requests in one job: lines of a file or a list in, lines with their answers out."""
