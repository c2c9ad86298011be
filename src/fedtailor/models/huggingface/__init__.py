"""Folders of the library transformers as models, and adapters of the library PEFT; neither
library is needed.
"""

from fedtailor.models.huggingface.folder import from_huggingface
from fedtailor.models.huggingface.peft import from_peft, save_peft
from fedtailor.models.huggingface.transformer import Transformer

__all__ = ["Transformer", "from_huggingface", "from_peft", "save_peft"]
