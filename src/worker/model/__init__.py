"""A name becomes a folder on disk; huggingface_hub is all this needs."""
