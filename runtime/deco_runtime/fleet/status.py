"""What a server's state directory tells of its fleet, also while the server goes on."""

from __future__ import annotations

import time
from pathlib import Path

from deco_runtime.errors import StateError
from deco_runtime.fleet.ledger import Ledger
from deco_runtime.story import learned

MOST = 50
"""Devices that are listed, those first that had something new last."""


def lines(directory: Path) -> list[str]:
    """For people. Raises StateError where there is nothing, or where it cannot be read."""
    found = learned.read(directory)
    if found is None or "fleet" not in found.values:
        raise StateError(
            f"expected a fleet's state in {directory}, but found none; give the --state of deco-fleet serve"
        )
    ledger, places = Ledger.read(directory), found.values["fleet"]
    told = [
        f"recipe {found.recipe}, bundle {str(found.meta.get('bundle'))[:12]}",
        f"{ledger.rounds} rounds, the last {_ago(ledger.at)}: {ledger.answered} of {ledger.asked} devices "
        f"answered, {ledger.taken} had something new" if ledger.rounds else "no round yet",
        f"learned of {ledger.frames:,.0f} {ledger.unit}, of {len(places)} devices and the labelled images",
    ]  # fmt: skip
    if ledger.accuracy is not None and ledger.before is not None:
        told.append(f"the guard's images: {ledger.before:.1%} right before the fleet, {ledger.accuracy:.1%} now")
    if places:
        told.append(f"{'device':18}{'number':>8}{ledger.unit.split()[-1]:>12}  last new")
    newest = sorted(places.items(), key=lambda place: -place[1][3])
    for name, (number, _, frames, at) in newest[:MOST]:
        told.append(f"{name:18}{number:>8}{frames:>12,.0f}  {_ago(at)}")
    if len(newest) > MOST:
        told.append(f"and {len(newest) - MOST} more")
    told.append(f"refused: {ledger.refused}{', the last:' if ledger.refused else ''}")
    told += [f"  {_ago(at)}: {who} {why}" for at, who, why in reversed(ledger.refusals)]
    if found.note:
        told.append(f"note: {found.note}")
    return told


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{seconds:.0f} s ago"
