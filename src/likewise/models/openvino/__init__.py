"""OpenVINO: its own files, and ONNX files that it is to run."""
