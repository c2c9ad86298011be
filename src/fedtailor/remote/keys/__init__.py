"""Keys, certificates, kits and secrets of the clients."""
