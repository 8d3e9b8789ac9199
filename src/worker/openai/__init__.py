"""vLLM's own app, called in-process: the OpenAI routes and all its others."""
