"""deco-run teach: people say what frames show, also of a class that the bundle lacks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deco_runtime.errors import StateError, UsageError
from deco_runtime.telemetry.console import say

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle
    from deco_runtime.types import Ints, Pixels


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--state", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Of the run: its --state, or BUNDLE-state.")  # fmt: skip
@click.option("--class", "name", metavar="NAME",
              help="What the frames show: a class of the bundle, to correct what is answered; a new name, for a class "
              "that it lacks; or none, for what shows none of the classes.")  # fmt: skip
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR", help="A folder of pictures that show it.")
@click.option("--video", type=click.Path(path_type=Path), metavar="CLIP", help="A clip that shows it throughout.")
@click.option("--last", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="What the camera of a run that goes on saw in the last seconds, a few minutes at most.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Take back the last teaching.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), metavar="BUNDLE",
              help="What the state is of, where no run is on.  [default: DIR without '-state']")  # fmt: skip
def teach(
    state: Path, name: str | None, images: Path | None, video: Path | None, last: float | None, undo: bool,
    bundle_path: Path | None,
) -> int:  # fmt: skip
    """Say what frames show: a correction, or a class that is new.

    Works with a run that goes on, which learns it between two segments, and without one. Of what is taught the learner
    keeps what it sees in the frames, not the pictures themselves; a few of ten frames suffice for a new class, and one
    in five is kept for the guard. Where the guard's images say that the other classes lose by it, nothing is learned,
    and the exit code is 1.

    \b
    deco-run teach --state bundle-state --class badger --images badgers
    deco-run teach --state bundle-state --class badger --last 20         what stands before the camera now
    deco-run teach --state bundle-state --undo
    """
    given = [each for each in (images, video, last) if each is not None]
    if undo and (given or name is not None):
        raise UsageError("expected --undo alone, but found what to teach beside it; leave one of them out")
    if not undo and (name is None or len(given) != 1):
        raise UsageError(
            f"expected --class and one of --images, --video and --last, but found {len(given)} of these"
            f"{'' if name is not None else ' and no --class'}; say what shows it"
        )
    from deco_runtime.learning.taught import checked
    from deco_runtime.names import canonical
    from deco_runtime.running import door

    if name is not None:
        checked(canonical(name))  # before thousands of pictures are read
    hello = door.ask(state, {"do": "hello"})
    if hello is not None:
        told = _through_the_run(state, Path(hello["bundle"]), name, images, video, last, undo)
    elif last is not None:
        raise StateError(
            f"expected a run that goes on with --state {state} for --last, but none answers; start one, or give "
            "--images or --video"
        )
    else:
        told = _alone(state, bundle_path, name, images, video)
    return _tell(told)


def _tell(told: dict[str, Any]) -> int:
    """Say what came of it; the exit code."""
    if "name" not in told:
        say(f"took back the last teaching; {told['teachings']} are left, classes: {', '.join(told['classes'])}")
        return 0
    from deco_runtime.telemetry.happenings import ClassTaught

    it = ClassTaught(**told)
    if it.refused:
        say(f"error: expected {it.what} to do no harm, but the guard says that it {it.refused}; choose other frames")
        return 1
    say(f"{it.words}; classes: {', '.join(it.classes)}")
    return 0


def _through_the_run(
    state: Path, bundle_path: Path, name: str | None, images: Path | None, video: Path | None, last: float | None,
    undo: bool,
) -> dict[str, Any]:  # fmt: skip
    from deco_runtime.running import door
    from deco_runtime.storage.bundle import open_bundle

    request: dict[str, Any] = {"do": "undo"} if undo else {"do": "teach last", "class": name, "seconds": last}
    data = b""
    if not undo and last is None:
        pixels, takes = _pictures(images, video, open_bundle(bundle_path))
        request, data = {"do": "teach", "class": name, "takes": takes.tolist()}, pixels.tobytes()
    answer = door.ask(state, request, data)
    if answer is None:
        raise StateError(f"expected the run that holds {state} to go on, but it has ended; try again")
    return answer


def _alone(
    state: Path, bundle_path: Path | None, name: str | None, images: Path | None, video: Path | None
) -> dict[str, Any]:
    """Where no run is on: with the state as a run would take it up."""
    from deco_runtime.running import control
    from deco_runtime.running.alone import open_alone

    it = open_alone(state, bundle_path)
    known = it.bundle.classes
    if name is None:
        told: Any = control.undone(it.guarded, known)
    else:
        pixels, takes = _pictures(images, video, it.bundle)
        seen = control.observed_in(it.guarded.learner, pixels, it.bundle)
        told = control.taught(it.guarded, known, name, seen, takes)
    if getattr(told, "refused", None) is None:
        it.save()
    return asdict(told)


def _pictures(images: Path | None, video: Path | None, bundle: Bundle) -> tuple[Pixels, Ints]:
    """Pixels (n, size, size, 3) as the network takes them, and takes (n,)."""
    from deco_runtime.pictures import taught

    if images is not None:
        return taught.of_folder(images, bundle)
    assert video is not None
    return taught.of_clip(video, bundle)
