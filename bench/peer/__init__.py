"""The modules of bench/peers.py: cases, the inputs of a case, the exact result, and one module for each peer. A peer is a library that takes part in the comparison."""
