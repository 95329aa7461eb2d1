"""What was found: one sentence each, and the verdict over all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click

from deco_runtime.telemetry.redact import redact

Level = Literal["OK", "WARN", "FAIL"]
COLOURS: dict[Level, str] = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    level: FAIL where deco-run cannot do its work, WARN where it can but somebody should know.
    check: what was looked at, a word or two. sentence: what was found and, unless OK, what to do.
    figures: what was measured, for programs; what is not finite becomes null.
    """

    level: Level
    check: str
    sentence: str
    figures: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The finding for people; colours vanish where the output is no terminal."""
        return f"{click.style(f'{self.level:<4}', fg=COLOURS[self.level])}  {self.check}: {redact(self.sentence)}"


def can_run(findings: Sequence[Finding]) -> bool:
    """True when nothing failed."""
    return all(finding.level != "FAIL" for finding in findings)


def verdict(findings: Sequence[Finding], bundle_given: bool) -> str:
    """One sentence over all findings, which claims no more than was looked at."""
    failed = [finding.check for finding in findings if finding.level == "FAIL"]
    warned = sum(finding.level == "WARN" for finding in findings)
    if failed:
        what = ", ".join(dict.fromkeys(failed))
        return f"this board cannot run and learn as it is; mend {what}, then run deco-doctor again"
    aside = f"; {warned} warning{'s' * (warned > 1)} above" if warned else ""
    if not bundle_given:
        return f"deco-run's packages work on this board{aside}; give --bundle to try the learning graphs too"
    return f"this board can run and learn with this bundle{aside}"


def as_json(findings: Sequence[Finding], sentence: str) -> str:
    """One JSON object: can_run, verdict, findings."""
    listed = [{"level": f.level, "check": f.check, "sentence": f.sentence, "figures": f.figures} for f in findings]
    return json.dumps(_plain({"can_run": can_run(findings), "verdict": sentence, "findings": listed}))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return redact(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
