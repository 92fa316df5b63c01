# SPDX-License-Identifier: Apache-2.0
"""unslothai/unsloth#1021: transformers' Trainer with a model loaded in bf16; the layer norms never change."""
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).to(torch.bfloat16)
tokens = torch.randint(0, 64, (100, 16))
rows = [{"input_ids": row, "labels": row} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=25, learning_rate=2e-4, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no")
    Trainer(model, arguments, train_dataset=rows).train()
