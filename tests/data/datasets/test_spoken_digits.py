"""Spectrograms of recordings whose frequency is known."""

import numpy as np
import pytest

from fedtailor.data.datasets.spoken_digits import log_mel


@pytest.mark.parametrize("frequency", [250.0, 1000.0, 3000.0])
def test_a_tone_is_loudest_in_its_band_while_it_lasts(frequency):
    times = np.arange(4000) / 8000
    tone = (2**14 * np.sin(2 * np.pi * frequency * times)).astype(np.int16)
    found = log_mel(tone)[..., 0]
    assert found.shape == (98, 32) and found.dtype == np.float32
    # Bands are evenly spaced by 2595 log10(1 + f / 700), up to 4,000 Hz.
    highest = 2595 * np.log10(1 + 4000 / 700)
    place = 2595 * np.log10(1 + frequency / 700) / highest
    expected = place * 33 - 1
    loudest = found[:45].mean(axis=0).argmax()
    assert abs(loudest - expected) <= 1
    # Half a second of sound, then silence.
    assert found[:48, loudest].min() > found[51:, loudest].max() + 1
    assert abs(found.mean()) < 1e-5 and abs(found.std() - 1) < 1e-5
