"""Frame sources. A new one is one new file in this folder, and no edit elsewhere.

Every module here that has an OPTION is a source, and so is a module of another package that an entry point names, see
`plugins`. It defines

    OPTION: click.Option                                             how the command line asks for it
    open_source(value: Any, request: SourceRequest) -> FrameSource   value: what the user gave to OPTION

and, if it can be one of several that are learned from at once,

    is_live(value: Any) -> bool                                      whether it is a stream that does not wait

and imports cv2 inside functions only, so that `--help` works on a machine without OpenCV. A live source is a
`_live.Live` around a function that opens the device, which is called in a process of its own. Every source shows its
pictures as `request.view` has it, and only those that it takes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from deco_runtime.plugins import brought, module_with
from deco_runtime.sources.view import WHOLE, View

if TYPE_CHECKING:
    from pathlib import Path

    from deco_runtime.storage.bundle_files import Root
    from deco_runtime.types import Frame, Notice

Order = Literal["stc", "recorded"]
ORDERS: tuple[Order, ...] = get_args(Order)
"""In which order a folder is streamed, see `orders`."""

BLACK = 16.0
"""99th percentile of a picture, of 0 … 255, below which it is black: what video calls black, or a lens cap."""

FPS_UNKNOWN = 30.0
"""Frames a second of what is replayed and does not say how many it had, as a folder of images."""

PLAIN = 1.0
"""Standard deviation of a picture, of 0 … 255, below which it has nothing to see in it."""


class FrameSource(Protocol):
    """Where frames come from.

    name: for people.
    live: True if the source does not wait: frames not taken in time are dropped and counted.
        False: every frame is delivered.
    length: number of frames if known beforehand.
    dropped: number of frames dropped so far.
    """

    name: str
    live: bool
    length: int | None

    @property
    def dropped(self) -> int: ...

    def frames(self) -> Iterator[Frame | Notice]:
        """Yield frames until the source ends or is closed. Raises SourceError or DataError when it fails.

        A live source goes on trying instead of failing, and says so in notices; a replayed one has none.
        """

    def fingerprints(self) -> frozenset[str]:
        """Of the image files that it streams, to know copies of them by; empty where it streams none."""

    def note(self) -> str | None:
        """One sentence about what was left out so far (unreadable images, a video's missing end), or None."""

    def figures(self) -> dict[str, Any]:
        """For the event stream and the summary; of these, a video file has `damaged` alone and a folder nothing.

        width, height, fps, fourcc: what was opened, None where unknown; the size is that of what is seen of it. roi,
        rotate, every: of the view, where they change anything. stalls: waits in vain for a frame, or for the source to
        open. reconnects: times it came back. damaged: frames that could not be decoded, and were left out.
        frozen_frames, black_frames: those that were predicted but not learned from. streams: these figures of each of
        several, see `together`.
        """

    def close(self) -> None:
        """End `frames`, also if another thread waits in it, and release the device. May be called again."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source may need to know about the run.

    classes: K class names of the bundle; labels are indices into them.
    size: side of the network's square input in pixels.
    stc: strength of temporal correlation, consecutive images of one class in a stream made from a folder.
    seed: of the stream's random order.
    trained_on: fingerprints of the images the model was trained on; a folder leaves them out of its stream.
    bundle: where the bundle's files are.
    order: of a stream made from a folder; "recorded" needs neither stc nor seed.
    labels: file with the labels of a video's frames, for scoring only; None for none.
    view: how the pictures are looked at.
    """

    classes: tuple[str, ...]
    size: int
    stc: int
    seed: int
    trained_on: frozenset[str]
    bundle: Root
    order: Order = "stc"
    labels: Path | None = None
    view: View = WHOLE


def discover() -> dict[str, ModuleType]:
    """All source modules by the parameter name of their OPTION ("camera" for `--camera`), sorted by it. Raises
    RuntimeMissingError for one of another package that fails to load."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    modules += brought("source", module_with("OPTION", "open_source"))
    return dict(sorted((module.OPTION.name, module) for module in modules if hasattr(module, "OPTION")))


def are_live(given: Sequence[tuple[str, Any]]) -> bool:
    """Whether all sources, each by its option's name and value, are live."""
    found = discover()
    return all(hasattr(found[name], "is_live") and found[name].is_live(value) for name, value in given)
