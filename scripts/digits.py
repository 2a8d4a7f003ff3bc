#!/usr/bin/env python3
"""Writes scikit-learn's 8 x 8 digits (pip install scikit-learn) for `polyhead train digits`:

    python3 scripts/digits.py digits.npz          images [1797,8,8] float32 from 0 to 16, labels [1797] int64
"""
import sys

import numpy as np
from sklearn.datasets import load_digits

if len(sys.argv) != 2:
    sys.exit(__doc__)
digits = load_digits()
np.savez_compressed(sys.argv[1], images=digits.images.astype(np.float32), labels=digits.target.astype(np.int64))
