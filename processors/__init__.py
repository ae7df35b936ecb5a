"""The middle: continuous views over streams, exactly once."""
