"""Contracts: streams, topics, the codec between payloads and columns, the registry, the judge of readings."""
