"""Who holds which data: federations, data sets, tables."""
