"""RunPod's own dialect: a prompt or a conversation in, choices and usage out."""
