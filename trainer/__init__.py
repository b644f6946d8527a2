"""What a training process runs: process group, data, models, job."""
