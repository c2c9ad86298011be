"""What several methods are made of: pure functions that their files call by name."""
