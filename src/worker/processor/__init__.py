"""Runs inside the engine's processes."""
