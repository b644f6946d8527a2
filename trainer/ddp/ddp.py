"""DistributedDataParallel: a module whose replicas on all ranks stay equal.

The wrapper makes parameters equal at construction, lets the reducer average gradients in backward,
and synchronises buffers before forward. Names and state are those of the module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, final

from gradmesh.engine.autograd import Tensor, is_grad_enabled
from gradmesh.engine.backend import Device
from gradmesh.engine.nn import Module
from gradmesh.engine.nn.module import LoadReport
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.agreement import check_agreement
from gradmesh.trainer.ddp.construction import (
    Placement,
    buffer_modes,
    check_delayed,
    check_some,
    check_sparse_ids,
    describe,
    describe_delayed,
    ignored_names,
    reduced_parameters,
)
from gradmesh.trainer.ddp.delayed_all_reduce import DelayedAllReduce
from gradmesh.trainer.ddp.join import Intent, Join, Joinable, JoinHook, JoinIteration
from gradmesh.trainer.ddp.log_data import LogData
from gradmesh.trainer.ddp.mixed_precision import Caster, MixedPrecision
from gradmesh.trainer.ddp.options import BucketCaps, ReducerOptions
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.ddp.reduction_hooks import ReductionHooks
from gradmesh.trainer.ddp.state_sync import (
    BufferHook,
    BufferHookLocation,
    Buffers,
    broadcast_tensors,
)
from gradmesh.trainer.ddp.sync_batch_norm import SyncBatchNorm
from gradmesh.trainer.ddp.tensor_tree import tensors_in
from gradmesh.trainer.ddp.timeline import Timeline
from gradmesh.trainer.process_group import ProcessGroup, default_group


@final
class DDPJoinHook(JoinHook):
    """Mirror the iterations of the active ranks with zeros, and copy the result at the end.

    Args:
        reducer: The wrapper's reducer.
        buffers: The wrapper's buffers.
        group: The ranks.
        copy_state: Copies one rank's state to all.
        follow: Applies to the wrapper what the active ranks do.
    """

    def __init__(
        self,
        reducer: Reducer,
        buffers: Buffers,
        group: ProcessGroup,
        copy_state: Callable[[int], None],
        follow: Callable[[JoinIteration], None],
    ) -> None:
        self._reducer = reducer
        self._buffers = buffers
        self._group = group
        self._copy_state = copy_state
        self._follow = follow

    def main_hook(self, iteration: JoinIteration) -> None:
        """Mirror one iteration."""
        self._follow(iteration)
        intent = iteration.intent
        syncs = bool(intent & Intent.SYNC_GRADIENTS)
        if syncs:
            self._reducer.rebuild()
        if intent & Intent.SYNC_BUFFERS:
            self._buffers.before_forward(self._group, max(iteration.active))
            self._buffers.after_forward()
        if syncs:
            self._reducer.mirror_pass()
        self._buffers.wait()

    def post_hook(self, last: JoinIteration) -> None:
        """Copy the state of the highest rank that was active last."""
        self._copy_state(max(last.active))


@final
class DistributedDataParallel(Module, Joinable):
    """Data-parallel wrapper: replicas start equal, and gradients are averaged over all ranks.

    Construction is collective. After it every backward pass through the wrapper's outputs averages
    gradients over the ranks: summed in rank order, then divided. Inside a distributed-autograd
    context averages go to the context's map and `.grad` does not change.

    Args:
        module: The module; at least one parameter requires a gradient.
        device_ids: None, or the one device of a GPU module; inputs are moved there.
        output_device: Device of a GPU module's outputs; its own device if None.
        broadcast_buffers: Deprecated, as in PyTorch: forward_sync_buffers, which for False also
            leaves buffers out of init_sync.
        process_group: The ranks; the default group if None.
        init_sync: Compare the ranks' parameters and options, and copy those of rank 0.
        bucket_cap_mb: Size in MiB at which a bucket is sent; None means 25, the first one 1.
        find_unused_parameters: Allow parameters to be unused in a pass, on any rank.
        gradient_as_bucket_view: Let `.grad` be a view of the buckets, which saves a copy. The next
            pass overwrites it.
        static_graph: Promise that every pass has the graph of the first.
        delay_all_reduce_named_params: Names and parameters to average separately, in one buffer.
        param_to_hook_all_reduce: Parameter whose gradient triggers their all-reduce.
        mixed_precision: Dtypes of forward, reduction and buffers.
        skip_all_reduce_unused_params: Skip buckets that no rank uses.
        bucket_cap_mb_list: Caps of the first, second, ... bucket, instead of bucket_cap_mb.
        batched_grad_copy: Fill a bucket when its last gradient is ready, not one by one.
        forward_sync_buffers: Copy rank 0's buffers to all ranks before a forward that follows a
            synchronised one; None means True.

    Raises:
        CollectiveMismatch: Ranks differ in parameters, shapes, dtypes or options; on all ranks.
        NoDefaultGroup: No group was given and init_process_group was not called.
        ValueError: An option does not fit the module.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        *,
        broadcast_buffers: bool | None = None,
        process_group: ProcessGroup | None = None,
        init_sync: bool = True,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Sequence[tuple[str, Tensor]] | None = None,
        param_to_hook_all_reduce: Tensor | None = None,
        mixed_precision: MixedPrecision | None = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        group = default_group() if process_group is None else process_group
        self._group = group
        delayed = check_delayed(delay_all_reduce_named_params, param_to_hook_all_reduce)
        self._ignored = ignored_names(module)
        self._placement = Placement.of(module, device_ids, output_device)
        options = ReducerOptions(
            caps=BucketCaps(
                bucket_cap_mb, None if bucket_cap_mb_list is None else tuple(bucket_cap_mb_list)
            ),
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            static_graph=static_graph,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            batched_grad_copy=batched_grad_copy,
        )
        separate = frozenset(name for name, _ in delayed)
        leaves, specs = reduced_parameters(
            module, self._ignored | separate, mixed_precision, gradient_as_bucket_view
        )
        self._buffer_sync = Buffers(module, self._ignored)
        sync_buffers, copies_buffers = buffer_modes(broadcast_buffers, forward_sync_buffers)
        if init_sync:
            modes = (sync_buffers, copies_buffers)
            common = describe(module, self._ignored, options, mixed_precision, modes)
            common += describe_delayed(module, delayed, param_to_hook_all_reduce)
            check_agreement(group, common)
        check_some(module, leaves, delayed)
        if init_sync:
            self._copy_state(0, copies_buffers)
        delayed_all_reduce = None
        if param_to_hook_all_reduce is not None:
            delayed_all_reduce = DelayedAllReduce(delayed, param_to_hook_all_reduce, group)
        # Before the reducer registers its hooks: it needs gradients cast back to the full dtype.
        self._caster = None if mixed_precision is None else Caster(mixed_precision, module, leaves)
        self._timeline = Timeline()
        self._reducer = Reducer(leaves, specs, group, options, self._timeline, delayed_all_reduce)
        self._reducer.after.append(self._buffer_sync.wait_after)
        self._hooks = ReductionHooks(self._reducer, mixed_precision is not None)
        self._forward_sync_buffers = sync_buffers
        self._synced_last = True
        self._is_syncing = True
        self._iteration = -1
        self._divide_by_active = False
        self._log = LogData(module, self._reducer, self._timeline)
        self._log.set(
            device_ids=", ".join(map(str, device_ids or ())),
            output_device=-1 if output_device is None else str(output_device),
            forward_sync_buffers=int(sync_buffers),
            has_sync_bn=int(self._has_sync_batch_norm()),
            is_multi_device_module=int(self._placement.is_multi_device),
        )

    def forward(self, *args: Any, **options: Any) -> Any:
        """Run the module, and have its gradients averaged in backward if they are recorded."""
        try:
            return self._forward(args, options)
        except Exception as error:
            self._log.set_error(error)
            raise

    def _forward(self, args: Any, options: Any) -> Any:
        reducer = self._reducer
        syncs = is_grad_enabled() and self._is_syncing
        self._hooks.move_in_backward_optimizers()
        if syncs:
            reducer.check_finished()
            if self._iteration >= 0:
                self._log.sample(self._iteration)
            self._iteration += 1
            self._timeline.begin(self._iteration)
        syncs_buffers = self.will_sync_module_buffers()
        root = self._announce(syncs, syncs_buffers)
        if syncs:
            reducer.rebuild()
        if syncs_buffers:
            self._buffer_sync.wait()
            self._buffer_sync.before_forward(self._group, root)
        self._timeline.mark("forward_compute_start")
        args, options = self._placement.move((args, options))
        if self._caster is None:
            result = self.module(*args, **options)
        else:
            args, options = self._caster.cast_inputs((args, options))
            with self._caster.cast_parameters():
                result = self.module(*args, **options)
        if syncs_buffers:
            self._buffer_sync.after_forward()
        self._timeline.mark("forward_compute_end")
        if syncs:
            reducer.arm(tensors_in(result))
        elif is_grad_enabled():
            reducer.disarm()
        self._synced_last = syncs
        return result

    def will_sync_module_buffers(self) -> bool:
        """Return whether the next forward copies rank 0's buffers to all; it is collective then.

        As in PyTorch it does so after a forward whose gradients are averaged: the first forward
        inside no_sync or no_grad still does, the first one after it does not.
        """
        return self._synced_last and self._forward_sync_buffers and bool(self._buffer_sync.named())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank inside the block, without averaging them.

        The forward must run inside the block, too. The next synchronised pass averages what has
        accumulated.
        """
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context in which ranks may have different numbers of inputs.

        Args:
            divide_by_initial_world_size: Divide by the number of all ranks, else by that of the
                ranks with inputs.
            enable: Whether to join; the context does nothing otherwise.
            throw_on_early_termination: Stop all ranks when the inputs of one have ended.

        Raises:
            ValueError: Layers communicate in forward, which cannot be mirrored.
        """
        if enable and self._has_sync_batch_norm() and not throw_on_early_termination:
            raise ValueError(
                "SyncBatchNorm communicates in forward, which ranks without inputs cannot mirror;"
                " use throw_on_early_termination=True"
            )
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **options: Any) -> JoinHook:
        """Return the hook that runs on ranks whose inputs have ended."""
        if self._reducer.delayed is not None:
            raise ValueError("join cannot mirror delay_all_reduce_named_params")
        self._divide_by_active = not options.get("divide_by_initial_world_size", True)
        self._log.set(join_uneven_inputs=1)
        return DDPJoinHook(
            self._reducer,
            self._buffer_sync,
            self._group,
            lambda root: self._copy_state(root, self._forward_sync_buffers),
            self._follow,
        )

    @property
    def join_process_group(self) -> ProcessGroup:
        """The process group."""
        return self._group

    @property
    def join_device(self) -> Device:
        """The device of the parameters."""
        return next(self.module.parameters()).device

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Replace the all-reduce by a hook: hook(state, bucket) -> Future.

        Register the same hook on every rank, before the first backward. The hook gets gradients
        that are not divided yet; the value of its future becomes the gradients.

        Raises:
            TypeError: If the hook is not callable.
            ValueError: If its annotations have other types.
            ReductionError: If there is a hook already, mixed precision, or an optimizer that
                steps in backward.
        """
        self._hooks.set_comm_hook(state, hook)

    def register_buffer_comm_hook(
        self,
        state: Any,
        hook: BufferHook,
        location: BufferHookLocation = BufferHookLocation.POST_FORWARD,
    ) -> None:
        """Replace the broadcast of buffers by hook(state, buffers by name).

        It may return futures, which are waited for at the end of backward. It also runs on ranks
        whose inputs have ended.
        """
        self._buffer_sync.set_hook(state, hook, location)

    def register_fused_optim(
        self,
        optimizer_class: type[Optimizer],
        *args: Any,
        optim_params: Sequence[Tensor] | None = None,
        **options: Any,
    ) -> Optimizer:
        """Step parameters at the end of every synchronised backward pass.

        Args:
            optimizer_class: Such as SGD.
            args: Its arguments after the parameters.
            optim_params: Which parameters; all that are averaged if None.
            options: Its options.

        Returns:
            The optimizer, for schedules and checkpoints.
        """
        chosen = self._reducer.leaves if optim_params is None else list(optim_params)
        optimizer = optimizer_class(chosen, *args, **options)
        self._hooks.add_fused_optimizer(optimizer, chosen)
        return optimizer

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadReport:
        """Copy values by name, with or without a leading `module.`."""
        prefix = "module."
        own = self.state_dict()
        if state_dict and all(n.startswith(prefix) and n not in own for n in state_dict):
            state_dict = {name.removeprefix(prefix): v for name, v in state_dict.items()}
        return self.module.load_state_dict(state_dict, strict)

    def update_process_group(self, group: ProcessGroup, sync_state: bool = True) -> None:
        """Switch to another process group, also after a failed backward pass; collective.

        Communication hooks keep the groups they were given.

        Args:
            group: The new ranks.
            sync_state: Copy parameters and buffers from the new rank 0: after a failure some ranks
                may be a step ahead of others.
        """
        self._group = group
        self._reducer.move_to(group)
        # Ranks may differ in this if some failed in a forward.
        self._synced_last = True
        if sync_state:
            self._copy_state(0)
        self._log.set(world_size=group.size, rank=group.rank, has_error=0, error="")

    def set_sparse_ids(self, ids: Mapping[str, Any]) -> None:
        """Announce which rows have gradients on any rank in the next pass.

        A sparse gradient is then summed without gathering ids.

        Args:
            ids: By parameter name, the same on every rank, for every sparse parameter.
        """
        check_sparse_ids(self._reducer, ids)

    def set_runtime_stats_sample_rate(self, rate: int) -> None:
        """Sample every `rate`-th iteration after the first ten.

        Raises:
            ValueError: If the rate is below 1.
        """
        self._timeline.set_rate(rate)

    def logging_data(self) -> dict[str, Any]:
        """Return statistics of construction and of the last sampled iteration."""
        if self._iteration >= 0:
            self._log.sample(self._iteration)
        return self._log.snapshot()

    def check_reduction_finished(self) -> None:
        """Raise UnfinishedReduction if the last backward pass ended with an error."""
        self._reducer.check_finished()

    def remove_autograd_hooks(self) -> None:
        """Stop averaging; further passes are local."""
        self._reducer.release()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a wrapper cannot be pickled or copied: it belongs to a process group; save"
            " state_dict(), and wrap the module again"
        )

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        # The module's names, not those of an attribute called module.
        if id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
            yield from self.module._walk(prefix, seen)

    def _copy_state(self, root: int, with_buffers: bool = True) -> None:
        """Copy parameters and buffers of one rank to all; collective."""
        tensors: list[Tensor] = [
            tensor for name, tensor in self.module.named_parameters() if name not in self._ignored
        ]
        if with_buffers:
            tensors += self._buffer_sync.named().values()
        broadcast_tensors(self._group, tensors, root, is_change=True)

    def _announce(self, syncs: bool, syncs_buffers: bool) -> int:
        """Announce the iteration to joined ranks; return the rank whose buffers are copied."""
        if self._join is None:
            self._set_divisor(None)
            return 0
        intent = Intent.ACTIVE
        intent |= Intent.SYNC_GRADIENTS if syncs else Intent(0)
        intent |= Intent.SYNC_BUFFERS if syncs_buffers else Intent(0)
        iteration = self._join.announce(self, intent)
        self._set_divisor(iteration)
        assert iteration.intent == intent
        return max(iteration.active)

    def _set_divisor(self, iteration: JoinIteration | None) -> None:
        by_active = iteration is not None and self._divide_by_active
        self._reducer.divisor = (
            len(iteration.active) if iteration is not None and by_active else self._group.size
        )

    def _follow(self, iteration: JoinIteration) -> None:
        """Follow the active ranks, on a rank whose inputs have ended."""
        self._set_divisor(iteration)
        self._synced_last = bool(iteration.intent & Intent.SYNC_GRADIENTS)

    def _has_sync_batch_norm(self) -> bool:
        return any(isinstance(module, SyncBatchNorm) for module in self.module.modules())
