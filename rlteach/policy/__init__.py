"""The models of the loop: the policy that learns, the reference that does not, the sampler."""
