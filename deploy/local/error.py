"""The one way in which the local stack says that it cannot go on."""


class LocalStackError(RuntimeError):
    """What is missing or in the way, and what to do about it, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
