"""The client's side: what it answers, under its policy, and its account of it."""
