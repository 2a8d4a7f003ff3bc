"""What bench/peers.py compares: cases, inputs, the exact result, and one file per peer."""
