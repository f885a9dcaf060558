"""Programs that a build needs and that this machine does not have."""


class MissingTool(RuntimeError):
    """A program was not found, or does not work: the text says what to install."""
