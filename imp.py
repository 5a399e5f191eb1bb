import time,sys
t=time.process_time()
import torch; a=time.process_time()
import tarry.record.consistency; b=time.process_time()
import tarry.runs.verify; c=time.process_time()
print(f"torch {a-t:.2f}, consistency {b-a:.2f}, runs.verify {c-b:.2f}", len([m for m in sys.modules if m.startswith('tarry')]))
