"""What the site says that the code knows: pages about methods, commands and names."""
