"""One thread: the models here are so small that a second one only costs time."""

import torch

torch.set_num_threads(1)
