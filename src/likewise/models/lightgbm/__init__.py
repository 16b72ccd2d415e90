"""LightGBM models: opening and asking them, their trees, their export to ONNX."""
