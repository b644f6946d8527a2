"""The trainer process: process group, DDP, data, models, job."""
