"""Everything that can go wrong on purpose.

    DecoError                 exit 1   base: one sentence: what was expected, what was found, what to do
    ├── UsageError            exit 2   options or recipe values that cannot work together
    ├── DataError             exit 3   image folders and images
    ├── BundleError           exit 4   the exported bundle is missing, altered or not for this version
    ├── RuntimeMissingError   exit 5   no onnxruntime or OpenCV, two of them, or the wrong one for an engine
    ├── SourceError           exit 6   camera, video or URL cannot be opened or stopped delivering
    ├── StateError            exit 7   learned state that cannot be read, or belongs to another bundle
    └── ExportError           exit 8   a model that cannot be turned into learning graphs, or failed its check

The command line prints the sentence and exits with the class's code; a traceback is a bug.
"""


class DecoError(Exception):
    """Base of all errors of this project; the message is a sentence meant for the user."""

    exit_code = 1


class UsageError(DecoError):
    """Options or recipe values that cannot work; the message names the option and its allowed values."""

    exit_code = 2


class DataError(DecoError):
    """A data folder or its images cannot be used; the message names the folder or file."""

    exit_code = 3


class BundleError(DecoError):
    """The bundle is missing, altered, incomplete or of another schema; export it again."""

    exit_code = 4


class RuntimeMissingError(DecoError):
    """The numeric runtime or OpenCV is absent, doubled or unfit; the message names the extra to install."""

    exit_code = 5


class SourceError(DecoError):
    """A camera, video file or URL cannot be opened or read; the message says which and why."""

    exit_code = 6


class StateError(DecoError):
    """Learned state cannot be used: unreadable, or made from another bundle."""

    exit_code = 7


class ExportError(DecoError):
    """The model cannot be exported, or an exported graph disagrees with torch."""

    exit_code = 8


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
