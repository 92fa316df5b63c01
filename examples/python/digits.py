# SPDX-License-Identifier: Apache-2.0
"""The digits as tensors: images of N x 1 x 8 x 8 between -1 and 1, and their labels."""

import gzip
import os

import torch
from torch.utils.data import Dataset

DATA = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "data", "digits.csv.gz")


def load(train=True, path=DATA):
    """Every third image is for the test."""
    with gzip.open(path, "rt") as file:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    chosen = (torch.arange(len(rows)) % 3 != 2) == train
    rows = rows[chosen]
    return rows[:, :64].reshape(-1, 1, 8, 8) / 8 - 1, rows[:, 64].long()


class Digits(Dataset):
    def __init__(self, train=True, path=DATA):
        self.images, self.labels = load(train, path)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]
