"""What a job may ask for, and the plan that comes of it."""
