"""Hooks that replace the all-reduce of gradients: hook(state, bucket) -> Future."""

from gradmesh.trainer.ddp.comm_hooks.default import CommHook as CommHook
from gradmesh.trainer.ddp.comm_hooks.default import allreduce_hook as allreduce_hook
from gradmesh.trainer.ddp.comm_hooks.default import bf16_compress_hook as bf16_compress_hook
from gradmesh.trainer.ddp.comm_hooks.default import bf16_compress_wrapper as bf16_compress_wrapper
from gradmesh.trainer.ddp.comm_hooks.default import fp16_compress_hook as fp16_compress_hook
from gradmesh.trainer.ddp.comm_hooks.default import fp16_compress_wrapper as fp16_compress_wrapper
from gradmesh.trainer.ddp.comm_hooks.default import (
    hook_then_optimizer as hook_then_optimizer,
)
from gradmesh.trainer.ddp.comm_hooks.default import noop_hook as noop_hook
from gradmesh.trainer.ddp.comm_hooks.post_local_sgd import PostLocalSGDState as PostLocalSGDState
from gradmesh.trainer.ddp.comm_hooks.post_local_sgd import average_parameters as average_parameters
from gradmesh.trainer.ddp.comm_hooks.post_local_sgd import (
    post_local_sgd_hook as post_local_sgd_hook,
)
from gradmesh.trainer.ddp.comm_hooks.power_sgd import PowerSGDState as PowerSGDState
from gradmesh.trainer.ddp.comm_hooks.power_sgd import (
    batched_power_sgd_hook as batched_power_sgd_hook,
)
from gradmesh.trainer.ddp.comm_hooks.power_sgd import power_sgd_hook as power_sgd_hook
from gradmesh.trainer.ddp.comm_hooks.quantization import (
    quantization_perchannel_hook as quantization_perchannel_hook,
)
from gradmesh.trainer.ddp.comm_hooks.quantization import (
    quantization_pertensor_hook as quantization_pertensor_hook,
)

__all__ = [
    "CommHook",
    "PostLocalSGDState",
    "PowerSGDState",
    "allreduce_hook",
    "average_parameters",
    "batched_power_sgd_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "hook_then_optimizer",
    "noop_hook",
    "post_local_sgd_hook",
    "power_sgd_hook",
    "quantization_perchannel_hook",
    "quantization_pertensor_hook",
]
