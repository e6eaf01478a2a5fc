"""Hugging Face: one callback, given the Trainer, instruments its training.

    trainer = Trainer(model, arguments, train_dataset=...)
    trainer.add_callback(LockstepCallback(trainer))

The Trainer's events tell neither the duration of a fetch or a save nor that training failed, so
its own methods are timed too. The model is the one that the Trainer wrapped for several ranks.
"""

import functools
from collections.abc import Callable
from typing import Any

import lockstep
from lockstep.recorder.batches import num_samples, num_tokens
from lockstep_records.distribution import install_hint

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lockstep.integrations.transformers needs transformers; {install_hint('transformers')}",
        name=error.name,
    ) from error

Method = Callable[..., Any]


class LockstepCallback(TrainerCallback):
    """Instruments one Trainer with ``attach``'s options; a step has all its micro-batches."""

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        self._trainer, self._options = trainer, options
        self.monitor = lockstep.disabled()
        self._loss: Any = None
        self._logged: dict[str, float] = {}
        self._learning_rate: Any = None
        self._samples = self._tokens = 0
        timed = {
            "train": self._train,
            "get_batch_samples": self._fetch,
            "training_step": self._micro_batch,
            "evaluate": self._evaluate,
            "_save_checkpoint": self._save,
        }
        for name, wrapper in timed.items():
            method = getattr(trainer, name)
            setattr(trainer, name, functools.wraps(method)(functools.partial(wrapper, method)))

    def _train(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        failed = True
        try:
            result = method(*args, **kwargs)
            failed = False
        finally:
            if failed:
                self.monitor.close(failed=True)
        return result

    # All micro-batches of a step are fetched at once, before the first forward.
    def _fetch(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        self.monitor.enter_phase("data")
        fetched = method(*args, **kwargs)
        self.monitor.enter_phase("other")
        for batch in fetched[0]:
            self._samples += num_samples(batch)
            self._tokens += num_tokens(batch)
        return fetched

    def _micro_batch(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        loss = method(*args, **kwargs)
        self._loss = loss if self._loss is None else self._loss + loss
        return loss

    def _evaluate(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        with self.monitor.phase("eval"):
            return method(*args, **kwargs)

    def _save(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        with self.monitor.checkpoint(self._trainer.state.global_step):
            return method(*args, **kwargs)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Attaches to the wrapped model, and to the optimizer inside Accelerate's wrapper."""
        optimizer = self._trainer.optimizer
        self.monitor = lockstep.attach(
            self._trainer.model_wrapped, getattr(optimizer, "optimizer", optimizer), **self._options
        )

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Reads the learning rate before the scheduler changes it."""
        assert self._trainer.optimizer is not None
        self._learning_rate = self._trainer.optimizer.param_groups[0]["lr"]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Ends the step; a loss on a GPU is replaced by the last logged one."""
        # Reading it would wait for the device.
        on_gpu = self._loss is not None and self._loss.is_cuda
        self.monitor.step(
            step=self._trainer.state.global_step,
            loss=self._logged.get("loss") if on_gpu else self._loss,
            gradient_norm=self._logged.get("grad_norm"),
            learning_rate=self._learning_rate,
            samples=self._samples,
            tokens=self._tokens,
        )
        self._loss, self._logged = None, {}
        self._samples = self._tokens = 0

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        """Keeps the logged values for the end of the step."""
        self._logged = dict(logs or {})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Closes the monitor as done."""
        self.monitor.close()
