"""One thread: the models here are so small that a second one only costs time."""

import signal

import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits "ignore"
