"""The worker process: a user's functions and values, served."""
