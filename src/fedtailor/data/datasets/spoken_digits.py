"""The Free Spoken Digit Dataset: ten digits, said by six speakers.

Expected in the data directory: spoken-digits/ with spoken_digits.npz (the recordings
one after the other: arrays audio, offset, digit, speaker, take, rate), checked by
SHA-256. It cannot be downloaded in this form.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

_SOURCE = Source(
    "the Free Spoken Digit Dataset",
    ("spoken-digits",),
    ("spoken_digits.npz",),
    None,
    {
        "spoken_digits.npz": (
            "sha256:7e9c2d0b09af5c2b5aa4d7603b61bdfadea5fa36d9cf396e5c24dc3dae7e1e0d"
        )
    },
)
_RATE = 8000
_SAMPLES = _RATE
"""A recording is cut or padded with silence to a second."""
_WINDOW, _HOP, _FFT = 200, 80, 256
"""Windows of 25 ms, every 10 ms."""
_BANDS = 32
_TEST_TAKES = 5


@register(_SOURCE)
def spoken_digits(data_dir: DataDir = None) -> Dataset:
    """Spectrograms of the digits 0 to 9 by speaker, float32 [3000, 98, 32, 1].

    They are logarithms of the energies in 32 mel bands, in 98 windows of the first
    second, standardized in each recording. The speakers are the natural clients, and
    `test` marks the published test takes, 0 to 4 of each digit and speaker.

    Raises:
        MissingData: the file is missing.
        ValueError: the file is damaged.
    """
    arrays = read(_SOURCE, _decode, data_dir)
    return Dataset(
        arrays["x"],
        arrays["y"],
        10,
        "Spoken digits",
        test=arrays["test"],
        client=arrays["speaker"],
    )


def _decode(paths: list[Path]) -> Arrays:
    """Decode the file: spectrograms, digits, speakers and test takes."""
    with np.load(paths[0], allow_pickle=False) as archive:
        audio, offset = archive["audio"], archive["offset"]
        digit, speaker = archive["digit"], archive["speaker"]
        take = archive["take"]
    recordings = np.split(audio, offset[1:-1])
    return {
        "x": np.stack([log_mel(recording) for recording in recordings]),
        "y": digit.astype(np.int64),
        "speaker": speaker,
        "test": take < _TEST_TAKES,
    }


def log_mel(recording: NDArray[np.int16]) -> NDArray[np.float32]:
    """The standardized log-mel spectrogram of a recording.

    Args:
        recording: [samples] 16-bit samples at 8 kHz.

    Returns:
        [windows, bands, 1] with mean 0 and deviation 1.
    """
    signal = np.zeros(_SAMPLES)
    signal[: len(recording)] = recording[:_SAMPLES] / 2**15
    starts = np.arange(0, _SAMPLES - _WINDOW + 1, _HOP)
    windows = signal[starts[:, None] + np.arange(_WINDOW)] * np.hanning(_WINDOW)
    energies = np.abs(np.fft.rfft(windows, _FFT)) ** 2 @ _mel_filters()
    logarithms = np.log(energies + 1e-6)
    standardized = (logarithms - logarithms.mean()) / logarithms.std()
    return standardized[..., None].astype(np.float32)


def _mel_filters() -> NDArray[np.float64]:
    """[frequencies, bands] triangles, evenly spaced on the mel scale up to 4 kHz."""
    highest = 2595 * np.log10(1 + _RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, _BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(_FFT, 1 / _RATE)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - left) / (middle - left)
    falling = (right - frequencies) / (right - middle)
    return np.clip(np.minimum(rising, falling), 0, None)
