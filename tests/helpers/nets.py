"""Networks by their options."""

from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.algos.models import PolicyNet, make_model


def made_net(shapes, param_size, *, continuous=0, critic_only=(), nvec=(), **options) -> PolicyNet:
    """A network. options: of `ModelConfig`."""
    model = ModelConfig(**options)
    return make_model(shapes, param_size, model, continuous=continuous, critic_only=critic_only, nvec=nvec)
