# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer: a small BERT for sentences, warmup from 0, accumulation, evaluation, FP32."""
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=3, **sizes))
tokens = torch.randint(5, 100, (96, 12))
rows = [{"input_ids": row, "attention_mask": (row > 10).long(), "labels": row[0] % 3} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=20, learning_rate=5e-4,
        warmup_steps=5, eval_strategy="steps", eval_steps=10, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_strategy="no")
    Trainer(model, arguments, train_dataset=rows[:80], eval_dataset=rows[80:]).train()
