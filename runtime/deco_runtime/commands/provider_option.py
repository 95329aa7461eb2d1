"""--provider, the same option of every command that has it."""

from __future__ import annotations

import click

from deco_runtime.engines.providers import PROVIDERS


def provider_option() -> click.Option:
    """The option; which of them the installed onnxruntime offers is known only when it is imported."""
    return click.Option(
        ["--provider"],
        default="auto",
        show_default=True,
        metavar="NAME",
        help=f"What --engine portable computes on: {', '.join(PROVIDERS)}, as far as the installed onnxruntime offers "
        "it (deco-doctor lists that); the CPU does what it cannot. auto times what is offered, once, but tensorrt, and "
        "takes the fastest.",
    )
