"""The names of ``torch.cuda`` that the recorder and FSDP2 use, on the streams of this folder."""

from async_device.streams import Event, Stream, current_stream, select_stream

__all__ = ["Event", "Stream", "current_device", "current_stream", "is_initialized", "stream"]

stream = select_stream


def is_initialized() -> bool:
    """True: the streams run."""
    return True


def is_current_stream_capturing() -> bool:
    """False: this device has no graphs."""
    return False


def current_device() -> int:
    """0: there is one device a process."""
    return 0


def synchronize() -> None:
    """Has the host wait for the current stream."""
    current_stream().synchronize()
