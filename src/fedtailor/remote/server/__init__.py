"""The coordinator's side: rounds with clients on other machines."""
