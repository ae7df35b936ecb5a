"""The way out: raw rows and view rows into TimescaleDB."""
