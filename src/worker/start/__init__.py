"""From settings to a worker that takes jobs, and its end."""
