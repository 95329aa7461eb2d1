"""Networks that others trained: any ONNX file brought into one normal form, with no torch in sight."""
