"""Callbacks for trainers: `actfit.integrations.transformers` and `actfit.integrations.lightning`."""
