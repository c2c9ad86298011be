"""Arrays to intervals, tests, diagnoses and models that are not vectors."""
