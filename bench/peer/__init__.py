"""Parts of bench/peers.py: cases, inputs, the exact result, and one file for each peer."""
