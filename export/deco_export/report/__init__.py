"""A page about the labelled images and what the bundle makes of them, for whoever labels them (docs/report.md)."""
