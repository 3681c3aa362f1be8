"""The losses of the reference run (training/reference_run.py), step by step, on a CPU in fp32.

Other machines, thread counts and versions of torch differ from them by about 1e-6 of each value;
bf16 by 0.1 %, a learning rate that is 1 % off by 0.3 %. Written by
`python -m training.reference_run`.
"""

LOSSES = (
    5.563299,
    5.490582,
    5.316569,
    5.182333,
    4.964140,
    4.991134,
    4.807818,
    4.715415,
    4.416090,
    4.353493,
    4.173530,
    3.952931,
)
