import torch

# As in a run: on a busy machine two threads wait for each other longer than one works.
torch.set_num_threads(1)
