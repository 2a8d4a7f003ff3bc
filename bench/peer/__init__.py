"""The parts of bench/peers.py: cases, their inputs, the exact result, and one file for each peer. A peer is a library that takes part in the comparison."""
