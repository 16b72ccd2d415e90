"""PyTorch modules and exported programs. Nothing here imports torch before it is used."""
