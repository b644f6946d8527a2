"""The training job: its settings, its runs, its result."""
