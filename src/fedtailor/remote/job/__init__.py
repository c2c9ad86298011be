"""What a federation of machines trains: job.toml, the agreement on it, and what it needs to know of tables."""
