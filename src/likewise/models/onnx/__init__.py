"""ONNX graphs: opening and asking them, what they say and hold, and copies of them that compute something else."""
