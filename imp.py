import sys
import time

t = time.process_time()
a = time.process_time()
b = time.process_time()
c = time.process_time()
print(
    f"torch {a - t:.2f}, consistency {b - a:.2f}, runs.verify {c - b:.2f}",
    len([m for m in sys.modules if m.startswith("tarry")]),
)
