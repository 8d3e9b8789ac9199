"""A RunPod serverless worker that serves Hugging Face models with vLLM. Start at `handler`."""

__version__ = "0.4.0"
