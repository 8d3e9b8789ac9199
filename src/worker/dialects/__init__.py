"""Other programs' dialects, each a translation around the worker's own two."""
