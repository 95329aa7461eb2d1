"""The workstation side of DECO: pre-train, condense and export a bundle for the device."""
