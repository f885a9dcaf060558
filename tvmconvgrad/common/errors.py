"""What a build raises besides ValueError. Importing this imports no compiler, so that a caller without one has it."""


class MissingTool(RuntimeError):
    """A program was not found, or does not work: the text says what to install."""


class MissingLinker(MissingTool):
    """No C compiler was found to link a kernel with: its text says what to install."""


class MissingToolkit(MissingTool):
    """CUDA's toolkit was not found, or does not work."""


class TooLarge(ValueError):
    """A program exceeds what a GPU of the target has; the text says what."""


class MissingCompiler(MissingTool):
    """The interpreter that is to compile cannot, or has another version of this package."""


class CompilerFailed(RuntimeError):
    """Two processes in turn ended, or took too long, while they compiled a kernel; the text says how."""
