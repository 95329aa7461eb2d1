"""What people call: deco-run and its service; what all commands share at the terminal."""
