"""A RunPod serverless worker that serves any Hugging Face model with vLLM. Start at `handler`."""

__version__ = "0.4.0"
