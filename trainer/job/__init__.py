"""What a training process runs: the job and its settings."""
