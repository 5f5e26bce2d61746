"""From messages to the text the model was trained to continue."""
