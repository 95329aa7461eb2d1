"""What a device does with a message of its server: Flower's flwr-clientapp with the half that is installed here, in
place of the program that the server sends. Whoever has the server cannot run programs on the devices."""

from __future__ import annotations

import sys
from pathlib import Path

from deco_runtime.fleet.keeper import end_with_parent


def main() -> None:
    """With the name of a program of Flower's, and its arguments."""
    end_with_parent()  # Flower's own way out waits for a SuperNode that was killed, and would keep the state's lock
    name = sys.argv.pop(1)
    if name != "flwr-clientapp":
        sys.exit(f"error: expected to be asked for a device's sums, but the server asks for {name}; it is no fleet's")
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as runs

    from deco_runtime.fleet import _client_app

    ours = {
        "install_from_fab": lambda *_, **__: None,
        "get_project_dir": lambda *_, **__: Path.cwd(),
        "install_app_dependencies": lambda *_, **__: None,
        "get_load_client_app_fn": lambda *_, **__: lambda *_, **__: _client_app.client,
    }
    for each, own in ours.items():
        if not hasattr(runs, each):  # another version of Flower would run what the server sends
            sys.exit(f"error: expected Flower to have {each}, but found none; install 'deco-edge[fleet]' again")
        setattr(runs, each, own)
    sys.argv[0] = name
    flwr_clientapp()


if __name__ == "__main__":
    main()
