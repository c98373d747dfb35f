"""The fault run: nodes and services as processes, everything that can go wrong done to them, and an oracle that decides
every batch by itself afterwards. ``python -m anabranch.testkit.torture --seconds 60 --seed 1``."""
