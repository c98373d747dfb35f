"""An attack on a running stack, bounded in time: fuzzed calls, broken HTTP/2, hostile roles, values that expand.

Healthy neighbours are measured meanwhile (``run``).
"""
