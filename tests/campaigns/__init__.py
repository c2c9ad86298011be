"""Faults by the thousand: kills, flipped bits, full disks and bad input, drawn from
seeds.

`make campaign` runs them for half an hour; `test_campaigns.py` is the short form.
"""
