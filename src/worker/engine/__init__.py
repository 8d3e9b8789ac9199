"""The border: nothing else in the house imports vLLM, but `routines` and `processor`."""
