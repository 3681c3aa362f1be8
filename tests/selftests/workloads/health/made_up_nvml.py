"""As much of pynvml as a test says: functions answer, are refused, or are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NVMLError(Exception):
    """An error of NVML, with its number."""

    def __init__(self, value: int = 999) -> None:
        super().__init__(value)
        self.value = value


class NVMLError_NotSupported(NVMLError):
    """The GPU does not have it."""


class NVMLError_InvalidArgument(NVMLError):
    """There is no such part of it."""


class NVMLError_FunctionNotFound(NVMLError):
    """The driver does not have the function."""


class NVMLError_Timeout(NVMLError):
    """Nothing has happened in time."""


class NVMLError_GpuIsLost(NVMLError):
    """The GPU fell off the bus."""


class Driver:
    """`answers`: function or constant -> its value, what computes it, or the error it raises."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVMLError_Timeout = NVMLError_Timeout
    NVML_SUCCESS = NVML_P2P_STATUS_OK = 0
    NVML_ERROR_IN_USE, NVML_ERROR_NOT_SUPPORTED = 19, 3
    NVML_NVLINK_MAX_LINKS = 4
    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1
    nvmlClocksEventReasonSyncBoost, nvmlClocksEventReasonApplicationsClocksSetting = 0x10, 0x2
    nvmlMemory_v2 = 0x2000028

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name not in self.answers:
            raise AttributeError(name, name=name, obj=self)
        answer = self.answers[name]

        def call(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call
