"""Arrays of safetensors files, read when they are asked for."""

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedtailor._base.tensors import TensorFile


def test_a_file_that_has_become_shorter_gives_no_array(tmp_path):
    path = tmp_path / "arrays.safetensors"
    save_file({"x": np.arange(12.0).reshape(4, 3)}, path)
    file = TensorFile(path)
    np.testing.assert_array_equal(file.rows("x", np.array([1, 3])), file["x"][[1, 3]])
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SafetensorError, match="has become shorter"):
        file["x"]
    with pytest.raises(SafetensorError, match="has become shorter"):
        file.rows("x", np.array([0, 3]))
