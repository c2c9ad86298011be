"""The size from which a group of rows may be told of."""

MIN_ROWS = 5
"""The smallest number of training rows of which something may leave a client: of a
category that has its own input (infrequent ones share the input "other"), of a count of
federated preprocessing, of a class whose directions are sent.
"""
