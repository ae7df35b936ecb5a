"""The command line, and the supervisor of the local pipeline."""
