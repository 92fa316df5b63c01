# SPDX-License-Identifier: Apache-2.0
"""Mixed precision for MLX: `from libamp.mlx import amp`. Importing this imports mlx but not torch, and patches
nothing."""


def _check_mlx() -> None:
    wanted = "libamp.mlx needs MLX 0.32 or later"
    try:
        import mlx.core
    except ModuleNotFoundError as error:
        if error.name not in ("mlx", "mlx.core"):
            raise  # mlx is there, and lacks something itself
        raise ModuleNotFoundError(
            f'{wanted}, and this Python has none: pip install mlx (Linux: "mlx[cpu]" or "mlx[cuda]")', name="mlx"
        ) from None
    version = str(mlx.core.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 32):
        raise ImportError(f"{wanted}, and this is {version}", name="mlx")


_check_mlx()
