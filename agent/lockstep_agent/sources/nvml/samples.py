"""The rings of samples that a driver keeps of a GPU: what is new since the last look."""

from lockstep_agent.sources.nvml.device import Gpu

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class SampleRing:
    """One ring of one GPU, by NVML's number of the kind of sample."""

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self._gpu, self._kind = gpu, kind
        self._seen_microseconds = 0

    def read(self) -> list[float]:
        """The values of the new samples, oldest first; empty without a ring.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        answer = self._gpu.ask_afresh("nvmlDeviceGetSamples", self._kind, self._seen_microseconds)
        if answer is None or not 0 <= answer[0] < len(_MEMBERS):
            return []
        member = _MEMBERS[answer[0]]
        new = sorted(
            (sample.timeStamp, float(getattr(sample.sampleValue, member)))
            for sample in answer[1]
            if sample.timeStamp > self._seen_microseconds
        )
        if new:
            self._seen_microseconds = new[-1][0]
        return [value for _, value in new]
