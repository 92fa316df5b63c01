# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with bf16=True: FP32 weights, autocast, a cosine, weight decay, checkpointed layers."""
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32))
tokens = torch.randint(0, 64, (80, 16))
rows = [{"input_ids": row, "labels": row} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=20, learning_rate=1e-3, weight_decay=0.1, bf16=True,
        lr_scheduler_type="cosine", gradient_checkpointing=True, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_strategy="no")
    Trainer(model, arguments, train_dataset=rows).train()
