"""A Triton backend named `cpu` that compiles nothing: every kernel runs in Triton's interpreter.

vLLM's CPU build takes Triton for absent unless a backend has this name. The metadata in the folder
beside announces it, and with it a plugin of vLLM's (`scheduling`).
"""
