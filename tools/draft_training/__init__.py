"""Training of draft heads and draft models: the parts of `tools/train_draft.py`. Prompts and generations of the target
(`prompts`, `generations`), its hidden states in floating point (`target`, `corpus`, `data`), the networks that learn
from them (`eagle`, `medusa`, `small_model`, over `layers`), where they start (`start`), the training loop (`fit`,
`trainer`), acceptance on held-out prompts (`acceptance`), and the files that come out (`save`). Needs torch; nothing in
`src/` imports it."""
