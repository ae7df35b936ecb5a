"""What ends a command with one line instead of a stack trace."""


class UserMistakeError(Exception):
    """Something that the person at the keyboard can put right; the message names it and the remedy (exit code 2)."""


class FailedError(Exception):
    """The command was right and still could not do its work; the message says why (exit code 1)."""
