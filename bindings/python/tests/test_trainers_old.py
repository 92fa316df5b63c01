# SPDX-License-Identifier: Apache-2.0
"""The last versions that had an Apex backend, unedited, under `import apex` of libamp's: Hugging Face's Trainer with
half_precision_backend="apex" (transformers 4.57), Lightning with ApexMixedPrecisionPlugin (pytorch_lightning 1.9).
`tools/test --slow --python` installs them into a folder beside the environment's packages."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

FOLDER = os.path.join(sys.prefix, "old-trainers")

pytestmark = pytest.mark.skipif(
    os.environ.get("AMP_SLOW") != "true" or not os.path.isdir(FOLDER), reason=f"not --slow, or {FOLDER} is missing"
)

TRAINER = """
import json, sys, torch
sys.modules["datasets"] = None  # the environment's, if any, is for newer ones
import transformers
assert transformers.__version__.startswith("4.")
torch.manual_seed(0)
config = transformers.BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=16)
model = transformers.BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(16 * (i % 2), 16 + 16 * (i % 2), (6,)), "labels": torch.tensor(i % 2)}
        for i in range(16)]
arguments = transformers.TrainingArguments(output_dir=sys.argv[1], max_steps=16, fp16=True, use_cpu=True, report_to=[],
    half_precision_backend="apex", fp16_opt_level=sys.argv[2], logging_steps=1, save_strategy="no", disable_tqdm=True,
    per_device_train_batch_size=4, learning_rate=5e-3, gradient_accumulation_steps=2)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print(json.dumps({"losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
    "type": str(model.classifier.weight.dtype),
    "finite": all(bool(v.isfinite().all()) for v in model.state_dict().values()),
    "saved": str(next(iter(model.state_dict().values())).dtype)}))
"""

LIGHTNING = """
import json, sys, torch
import pytorch_lightning as pl
from pytorch_lightning.plugins import ApexMixedPrecisionPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from apex import amp
assert pl.__version__.startswith("1.")
torch.manual_seed(0)
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net, self.losses = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), []
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(16, 8), torch.randint(4, (16,))), batch_size=4)
model = Net()
pl.Trainer(plugins=[ApexMixedPrecisionPlugin(sys.argv[2])], max_epochs=4, logger=False, enable_progress_bar=False,
    enable_checkpointing=False, gradient_clip_val=0.5, accelerator="cpu", default_root_dir=sys.argv[1]).fit(model, data)
kind = str(model.net[0].weight.dtype)
found = [v.clone() for v in model.state_dict().values()]
plain = Net()
plain, optimizer = amp.initialize(plain, plain.configure_optimizers(), opt_level=sys.argv[2])
for _ in range(4):
    for x, y in data:
        optimizer.zero_grad()
        with amp.scale_loss(nn.functional.cross_entropy(plain(x), y), optimizer) as scaled:
            scaled.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
        optimizer.step()
print(json.dumps({"losses": model.losses, "type": kind, "finite": all(bool(v.isfinite().all()) for v in found),
    "same": all(torch.equal(a, b) for a, b in zip(found, plain.state_dict().values()))}))
"""

TYPES = {"O1": "torch.float32", "O2": "torch.float16"}


def under_run(script: str, level: str, folder: Any) -> dict[str, Any]:
    (folder / "script.py").write_text(script)
    path = os.pathsep.join([FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "libamp.run", str(folder / "script.py"), str(folder), level],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_trainer_with_its_apex_backend(level: str, tmp_path: Any) -> None:
    told = under_run(TRAINER, level, tmp_path)
    losses = told["losses"]
    assert len(losses) == 16 and sum(losses[8:]) < sum(losses[:8])
    assert told["finite"] and told["type"] == TYPES[level] and told["saved"] == "torch.float32"


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_lightning_with_its_apex_plugin(level: str, tmp_path: Any) -> None:
    told = under_run(LIGHTNING, level, tmp_path)
    assert sum(told["losses"][-4:]) < sum(told["losses"][:4])
    assert told["finite"] and told["type"] == TYPES[level] and told["same"]
