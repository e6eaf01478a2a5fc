"""Lightning: a callback instruments ``Trainer.fit``.

    trainer = Trainer(callbacks=[LockstepCallback()])

Lightning's batches are micro-batches, and its optimizer calls forward and backward from inside its
own step, so the phases come from Lightning's hooks; DDP's synchronisation comes from the model.
"""

import functools
from contextlib import ExitStack
from typing import Any

import lockstep
from lockstep.recorder.batches import num_samples, num_tokens
from lockstep_records.distribution import install_hint

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lockstep.integrations.lightning needs lightning; {install_hint('lightning')}",
        name=error.name,
    ) from error


class LockstepCallback(Callback):
    """Instruments one Trainer with ``attach``'s options; a step has all its micro-batches."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.monitor = lockstep.disabled()
        self._evaluation = ExitStack()
        self._losses: list[Any] = []
        self._learning_rate: Any = None
        self._samples = self._tokens = self._steps_seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attaches to the model as the strategy wrapped it, and times the Trainer's saves."""
        self.monitor = lockstep.attach(trainer.strategy.model or pl_module, **self._options)
        self._steps_seen = trainer.global_step
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> None:
            with self.monitor.checkpoint(trainer.global_step):
                save(*args, **kwargs)
            self.monitor.enter_phase("data")

        # No hook of Lightning's tells when a save ends.
        trainer.save_checkpoint = timed  # type: ignore[method-assign]  # of this one object

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begins the wait for the first batch."""
        self.monitor.enter_phase("data")

    def on_train_batch_start(self, _trainer: Trainer, _module: Any, batch: Any, *_: Any) -> None:
        """Ends the wait for the batch."""
        self._samples += num_samples(batch)
        self._tokens += num_tokens(batch)
        self.monitor.enter_phase("forward")

    def on_before_backward(self, _trainer: Trainer, _module: Any, loss: Any) -> None:
        """Ends the forward."""
        self._losses.append(loss.detach())
        self.monitor.enter_phase("backward")

    def on_after_backward(self, *_: Any) -> None:
        """Ends the backward."""
        self.monitor.enter_phase("other")

    def on_before_optimizer_step(self, _trainer: Any, _module: Any, optimizer: Any) -> None:
        """Reads the learning rate before the scheduler changes it."""
        self._learning_rate = optimizer.param_groups[0]["lr"]
        self.monitor.enter_phase("optimizer")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Ends the step, if this was its last micro-batch, and begins the wait for the next."""
        # Lightning counts optimizer steps; a batch that only accumulates ends none.
        if trainer.global_step != self._steps_seen:
            self._steps_seen = trainer.global_step
            self.monitor.step(
                step=trainer.global_step,
                loss=sum(self._losses) if self._losses else None,
                learning_rate=self._learning_rate,
                samples=self._samples,
                tokens=self._tokens,
            )
            self._losses.clear()
            self._samples = self._tokens = 0
        self.monitor.enter_phase("data")

    def on_validation_start(self, *_: Any) -> None:
        """Begins the evaluation, which holds its phase whatever the model's hooks report."""
        self._evaluation.enter_context(self.monitor.phase("eval"))

    def on_validation_end(self, *_: Any) -> None:
        """Ends the evaluation and begins the wait for the next batch."""
        self._evaluation.close()
        self.monitor.enter_phase("data")

    def on_exception(self, *_: Any) -> None:
        """Closes the monitor as failed."""
        self._evaluation.close()
        self.monitor.close(failed=True)

    def on_train_end(self, *_: Any) -> None:
        """Closes the monitor as done."""
        self.monitor.close()
