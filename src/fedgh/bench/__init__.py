"""How fast this machine runs a federation, beside how fast it could.

Everything is a ratio within one run where it can be: machines differ, and shared ones differ
from minute to minute.
"""
