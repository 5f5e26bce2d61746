"""One file per architecture: its layer, which shows the network, and the names of its tensors. `model.registry` lists
them by the names that specs have."""
