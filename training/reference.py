"""The loss of the fixed small run (training/exact.py), step by step, as it was on a CPU in fp32.

Other machines, threads and versions of torch differ from it by about 1e-6 of each value; bf16 by
0.1 %, a learning rate that is 1 % off by 0.3 %. Written by `python -m training.exact`.
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
