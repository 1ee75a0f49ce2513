"""Where arrays live and compute."""

from hotblock.devices.base import Device
from hotblock.devices.cpu import CpuDevice

__all__ = ["CpuDevice", "Device"]
