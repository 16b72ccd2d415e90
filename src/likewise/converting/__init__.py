"""One framework's way to ONNX a file."""
