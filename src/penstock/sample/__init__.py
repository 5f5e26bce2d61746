"""From logits to tokens: the samplers, one per backend, and what they share: requests by slot, masks, constraints and
reports. `reference` has the operations in torch, which define the results; besides it only the samplers of torch and
CUDA import torch. The kernels are `kernels/cpu/native/draw.cpp` and `kernels.cuda.sample`. A request's parameters act
on its row of the logits in this order:

    1. logit_bias           added                                                     masks
    2. repetition_penalty   tokens of prompt and output: x / r if x >= 0, else x * r  reference.penalties
    3. presence_penalty     tokens of the output: x - p                               reference.penalties
       frequency_penalty    tokens of the output: x - f * occurrences                 reference.penalties
    4. allowed_tokens       everything else to -inf                                   masks
       banned_tokens        to -inf
       constraint           tokens that the grammar does not allow to -inf            constraints
    5. min_tokens           end and stop tokens to -inf until then, unless the        masks, constraints
                            constraint lets nothing else follow
    6. temperature          x / t; 0: take the largest and stop here                  reference.filters
    7. top_k                keep the k largest                                        reference.filters
    8. top_p                keep the largest until their mass reaches p
    9. min_p                keep tokens with at least min_p of the largest probability
    10. typical_p           keep those nearest to the expected surprise, mass p
    11. draw                the largest of x + Gumbel noise                           reference.draw, .noise

`transformers` has the same order. Filters 7 to 9 see the renormalised distribution of the filter before, and keep
scores above a threshold: tokens of equal score stay or go together, so the result does not depend on how a sort breaks
ties. The noise depends on (seed, choice, position, token id) only.

Log-probabilities are those of the model itself, before 1.
"""
