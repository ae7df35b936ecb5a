"""Real Kafka, TimescaleDB and schema registry in a folder of the user, without Docker."""
