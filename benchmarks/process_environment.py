"""What the engine's actors run with, for benchmarks: freed arrays stay with the process, one thread computes.

It imports nothing, so that a benchmark can set it before torch and numpy come.
"""

ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
