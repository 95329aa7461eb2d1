"""Network families for `deco-export --model NAME`: one module each, with a function `build(classes, image_size, …)`.

A model maps (N, 3, H, W) float32 to logits (N, K) and ends with `torch.nn.Linear`; the input of that layer is its
feature vector (the encoder f_θ of the paper). A user's own is given as `PACKAGE.MODULE:FACTORY`.
"""
