"""Functions, states and a base class that several methods share."""
