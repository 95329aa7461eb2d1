"""Flower's SecAgg+ with a few devices: the server learns the sum of their differences, and nothing of each.

    python -m deco_benchmarks.fleet secure --bundle BUNDLE --seen FILE.npz --out FILE.json

Flower's own workflow and mod, which need numbers in a range that all know: so a difference is sent as parts of the most
that so many frames of the labelled images' kind could give. The sum is offered to the pool as one difference.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from deco_runtime.fleet.sums import frames, packed, unpacked
from deco_runtime.learning.regression import Doubles, Statistics, square, together, upper
from deco_runtime.types import Floats

from deco_benchmarks.fleet import shared
from deco_benchmarks.fleet.scale import difference
from deco_benchmarks.fleet.shared import Home, seen_file, with_home, with_out

ROOM = 16.0
"""How far a mean square may be beyond that of labelled images, as a factor; what is beyond is cut off."""


@click.command("secure")
@with_home
@click.option("--devices", default=5, type=click.IntRange(3))
@click.option("--segments", default=4, type=click.IntRange(1), help="That each device has seen.")
@click.option("--cores", default=2, type=click.IntRange(1), help="For the devices.")
@with_out
def command(home: Home, devices: int, segments: int, cores: int, out: Path) -> None:
    """One round by secure aggregation, beside the plain sum."""
    given = str(home.bundle.root), str(seen_file()), home.segment, segments
    with TemporaryDirectory() as spied:
        mean = by_secagg(home, given, devices, cores, Path(spied))
        each = [difference(*given, number, "fp32")[0] for number in range(devices)]
        masked = {int(file.stem): np.load(file) for file in Path(spied).glob("*.npy")}
    plain = [unpacked(arrays, "fp32", *home.known.b.shape) for arrays in each]
    total = plain[0]
    for other in plain[1:]:
        total = together(total, other)
    found = from_parts(mean * devices, home.known, home.segment * segments)
    models, w = dict[str, Any](), dict[str, Floats]()
    for name, sums in (("plain", total), ("secure", found)):
        pool = home.pool()
        reason = pool.offer(name, 1, "fp32", packed(sums, "fp32"), home.bundle.hash)
        verdict = pool.settle()
        models[name] = {"refused": reason, "verdict": (verdict.reason or "accepted") if verdict else None,
                        "accuracy": home.accuracy(pool.guarded.learner.model)}  # fmt: skip
        w[name] = shared.weights(pool.guarded.learner.model, len(home.bundle.classes))
    seen = {number: parts(sums, home.known, home.segment * segments) for number, sums in enumerate(plain)}
    report = {
        "bundle": home.bundle.hash, "devices": devices, "frames": frames(total), "values": len(mean),
        "a_apart": shared.apart(found.a, total.a), "b_apart": shared.apart(found.b, total.b),
        "w_apart": shared.apart(w["secure"], w["plain"]), "before": home.start(),
        "clipped_share": float(np.mean([np.mean(np.abs(each) > 1) for each in seen.values()])),
        "correlation_of_what_a_device_sent": {
            number: float(np.corrcoef(masked[number][-len(seen[number]):], seen[number])[0, 1]) for number in masked
        },
        **models,
    }  # fmt: skip
    shared.write(out, report)
    click.echo(report)


def by_secagg(home: Home, given: tuple[str, str, int, int], devices: int, cores: int, spied: Path) -> Floats:
    """The mean of what the devices send, by SecAgg+. spied: what each sends is put there, masked as it is."""
    from flwr.app import Context
    from flwr.common import FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    found: list[Floats] = []

    class Mean(FedAvg):
        def aggregate_fit(
            self, server_round: int, results: list[tuple[Any, FitRes]], failures: Any
        ) -> tuple[Parameters | None, dict[str, Any]]:
            found.append(parameters_to_ndarrays(results[0][1].parameters)[0])
            return results[0][1].parameters, {"devices": len(results)}

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Mean(
            fraction_evaluate=0.0, min_fit_clients=devices, min_available_clients=devices, min_evaluate_clients=0,
            initial_parameters=ndarrays_to_parameters([np.zeros(1, np.float32)]),
        )  # fmt: skip
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
        secure = SecAggPlusWorkflow(
            num_shares=1.0, reconstruction_threshold=0.6, max_weight=1.0, clipping_range=1.0,
            quantization_range=2**22, modulus_range=2**32,
        )  # fmt: skip
        DefaultWorkflow(fit_workflow=secure)(grid, legacy)

    config: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": cores, "include_dashboard": False}}
    run_simulation(server, client_app(given, str(spied)), devices, backend_config=config)
    if not found:
        raise RuntimeError("expected a sum by secure aggregation, but Flower gave none; see what it says above")
    return found[0]


def client_app(given: tuple[str, str, int, int], spied: str) -> Any:
    """Devices that fit nothing: what they send are their parts."""
    from flwr.app import Context, Message
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod

    class Device(NumPyClient):
        def __init__(self, number: int) -> None:
            self.number = number

        def fit(self, parameters: Any, config: Any) -> tuple[list[Floats], int, dict[str, Any]]:
            home = shared.home_of(*given[:3])
            arrays, _ = difference(*given, self.number, "fp32")
            sums = unpacked(arrays, "fp32", *home.known.b.shape)
            return [np.clip(parts(sums, home.known, given[2] * given[3]), -1, 1)], 1, {}

    def spy(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        for record in reply.content.config_records.values():
            for value in record.values():
                if isinstance(value, list) and value and isinstance(value[0], bytes) and len(value[-1]) > 10_000:
                    import io

                    sent = np.load(io.BytesIO(value[-1]), allow_pickle=False).ravel()
                    np.save(Path(spied) / f"{context.node_config['partition-id']}.npy", sent.astype(np.float64))
        return reply

    def client_fn(context: Context) -> Any:
        return Device(int(context.node_config["partition-id"])).to_client()

    return ClientApp(client_fn=client_fn, mods=[spy, secaggplus_mod])


def most(known: Statistics, count: int) -> tuple[Doubles, Doubles]:
    """What A and B of so many frames are at most, if these are no more than ROOM times as large as labelled ones."""
    root = np.sqrt(ROOM * np.maximum(np.diag(square(known)), 0) / frames(known))
    return (count * np.outer(root, root))[upper(len(root))], count * root[:, None]


def parts(sums: Statistics, known: Statistics, count: int) -> Floats:
    """As parts of that, in [−1, 1] but for strange frames."""
    a, b = most(known, count)
    made: Floats = np.concatenate([sums.a / a, (sums.b / b).ravel()]).astype(np.float32)
    return made


def from_parts(values: Floats, known: Statistics, count: int) -> Statistics:
    a, b = most(known, count)
    return Statistics(
        (values[: len(a)] * a).astype(np.float32),
        (values[len(a) :].reshape(known.b.shape) * b).astype(np.float32),
    )
