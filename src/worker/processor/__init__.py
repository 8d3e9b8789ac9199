"""Runs inside the engine's processes; `admission` alone runs in the worker's."""
