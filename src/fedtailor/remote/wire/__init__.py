"""What travels between coordinator and clients, and how it is checked."""
