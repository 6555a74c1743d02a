"""Let every Python process that has ``SIMCUDA`` in its environment own a simulated CUDA device."""

import os

if "SIMCUDA" in os.environ:
    import simcuda

    simcuda.install_from(os.environ["SIMCUDA"])
