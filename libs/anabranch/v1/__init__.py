"""Generated from protos/anabranch/v1 by `make protos`. Do not edit."""
