"""Measurements against named rivals. One row format; results are committed under results/<device>/."""
