"""The way in: instruments, simulated or measured, and the one publisher."""
