"""Where the operators of a graph are computed: by the provider that was asked for, or by the CPU behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CPU = "CPUExecutionProvider"
SHOWN = 4
"""Kinds of operators that are named of one graph."""


@dataclass(frozen=True)
class Placement:
    """Of one graph. elsewhere: nodes that the provider computes, a fused part counting as one. on_cpu: nodes on the
    CPU by operator. reason: why the provider that was asked for could not open the graph, "" where it could."""

    elsewhere: int
    on_cpu: Counter[str] = field(default_factory=Counter)
    reason: str = ""

    @property
    def idle(self) -> bool:
        """Whether the provider computes nothing of it."""
        return not self.elsewhere

    @property
    def left(self) -> str:
        """What the CPU computes, operators the most frequent first; "" for nothing."""
        if self.idle:
            return "all of it" + (f" ({self.reason})" if self.reason else "")
        if self.reason:
            return f"what a provider behind it does not, since it fails with: {self.reason}"
        most = self.on_cpu.most_common(SHOWN)
        rest = sum(self.on_cpu.values()) - sum(count for _, count in most)
        return ", ".join([f"{count} {name}" for name, count in most] + [f"{rest} others"] * bool(rest))


def read(events: Iterable[Mapping[str, Any]], reason: str = "") -> Placement:
    """What ONNX Runtime's profile says, a JSON array of events; each node counts once, however often it ran."""
    nodes = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes[event["name"]] = (event["args"]["provider"], event["args"]["op_name"])
    elsewhere = sum(provider != CPU for provider, _ in nodes.values())
    return Placement(elsewhere, Counter(name for provider, name in nodes.values() if provider == CPU), reason)


def told(engine: str, placed: Mapping[str, Placement]) -> tuple[str, bool] | None:
    """A sentence about an engine, "portable/NAME", and its graphs, and whether the CPU computes all of them; None where
    it has no part."""
    provider = engine.partition("/")[2]
    reason = next((each.reason for each in placed.values() if each.reason), "")
    if all(each.idle for each in placed.values()):
        why = f"fails with: {reason}" if reason else "took no operator; what it wrote above may say why"
        return (
            f"expected --provider {provider} to compute, but it {why}; the CPU computes everything, as with "
            "--provider cpu, until its libraries, driver and device are there"
        ), True
    left = "; ".join(f"of {graph} {each.left}" for graph, each in placed.items() if each.left)
    return (f"--provider {provider} leaves to the CPU {left}", False) if left else None
