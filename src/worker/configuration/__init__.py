"""A mapping of variables in, one frozen value out."""
